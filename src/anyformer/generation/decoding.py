"""One step of decoding for a whole batch: plain, or captured in a CUDA graph on a GPU."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_leaves

from anyformer.core import Aligned, Contiguous, Frame, Model, State, fork
from anyformer.generation.accelerate import fuse_step as fusing
from anyformer.generation.accelerate.cpu_trace import Flat
from anyformer.generation.accelerate.cuda_graphs import Idle, captured, put_back

Step = Callable[[Tensor, Tensor, State], tuple[Tensor, State]]
"""(tokens [b 1], positions [b 1], state) -> scores [b v], state."""


@dataclass(eq=False)
class Decoding:
    """Rows in the middle of being written. Whoever steps or keeps rows of it consumes it."""

    leaves: list[Tensor]
    """The tensors of the state."""
    tree: TreeSpec
    """How they hang together."""
    positions: Int[Tensor, " b"]
    """Where the next token of each row will stand."""
    logits: Float[Tensor, "b v"]
    """Scores of the next token."""
    room: int
    """Places that the state has."""
    reach: int
    """A number above every position so far."""
    even: bool = False
    """All rows have as many tokens as `reach` says."""
    graph: "Graph | None" = None
    """The captured step whose buffers the state lives in."""
    tape: Flat | None = None
    """The recorded step, for this shape and as long as `reach` is below `taped`."""
    taped: int = 0
    watched: bool = False
    """True: somebody looks on at the model's modules, so every step must really run them."""

    @property
    def rows(self) -> int:
        return self.positions.shape[0]

    @property
    def state(self) -> State:
        return self.tree.unflatten(self.leaves)


def eager_step(model: Model, decoding: Decoding, tokens: Int[Tensor, " b"]) -> Float[Tensor, "b v"]:
    """The plain call. A part is told what it may leave out of a state that is not full yet."""
    positions = decoding.positions[:, None]
    if decoding.even:
        frame = Frame(positions=positions, layout=Aligned(decoding.reach))
    else:
        frame = Frame(positions=positions, layout=Contiguous(min(decoding.reach + 1, decoding.room)))
    out = model(tokens[:, None], frame, decoding.state)
    decoding.leaves = tree_leaves(out.state)
    return out.y[:, -1]


class Graph:
    """A step of one shape: tokens and positions in, scores out, the state in buffers of its own."""

    def __init__(self, step: Step, state: State, rows: int):
        self.state = fork(state)
        self.tokens = torch.zeros(rows, 1, dtype=torch.long, device=tree_leaves(state)[0].device)
        self.positions = torch.zeros_like(self.tokens)
        self._step = step
        self._replay = captured(self._body)

    def _body(self) -> None:
        self.logits, state = self._step(self.tokens, self.positions, self.state)
        put_back(self.state, state)

    def load(self, state: State) -> None:
        """Takes over a state of the same shapes."""
        put_back(self.state, state)

    def __call__(self, tokens: Int[Tensor, " b"], positions: Int[Tensor, " b"]) -> Float[Tensor, "b v"]:
        """The scores lie in a buffer: the next call overwrites them."""
        self.tokens.copy_(tokens[:, None])
        self.positions.copy_(positions[:, None])
        self._replay()
        return self.logits


class Graphs:
    """Captured steps by shape. A graph serves one decoding at a time, and goes back when that one is over."""

    def __init__(self, model: Model, *, compiled: bool):
        def step(tokens: Tensor, positions: Tensor, state: State) -> tuple[Tensor, State]:
            out = model(tokens, Frame(positions=positions, layout=Contiguous()), state)
            return out.y[:, -1], out.state

        self.compiled, self.plain_call = compiled, step
        self.call: Step = (
            torch.compile(step, fullgraph=True, dynamic=False, backend=fusing.compiled) if compiled else step
        )
        self._idle = Idle[Graph]()

    def step(self, decoding: Decoding, tokens: Int[Tensor, " b"]) -> Float[Tensor, "b v"]:
        if decoding.graph is None:
            idle = self._idle.take(shapes(decoding.leaves))
            decoding.graph = idle or Graph(self.call, decoding.state, decoding.rows)
            decoding.graph.load(decoding.state)
            decoding.leaves = tree_leaves(decoding.graph.state)
        return decoding.graph(tokens, decoding.positions)

    def release(self, decoding: Decoding) -> None:
        """The state of the decoding is no longer its own."""
        if decoding.graph is not None:
            self._idle.put(shapes(decoding.leaves), decoding.graph)
            decoding.graph = None


def shapes(leaves: Sequence[Tensor]) -> tuple[Any, ...]:
    """What a captured or recorded step is made for."""
    return tuple((leaf.shape, leaf.dtype, leaf.device) for leaf in leaves)


class Common:
    """Which tensors of a state are still the same for all rows of a group, because no step has written to them.

    Rows of a group begin as copies of one. What a step leaves alone, such as an encoder's keys, need not be moved when
    they change places. Torch counts the writes to each tensor; a captured graph does not, so there all are moved.
    """

    def __init__(self, decoding: Decoding):
        known = decoding.graph is None and not decoding.logits.is_cuda and not torch.is_inference_mode_enabled()
        self._marks = [(leaf, leaf._version) if known else None for leaf in decoding.leaves]

    def reorder(self, leaves: Sequence[Tensor], rows: Int[Tensor, " b"], *, all_stay: bool) -> list[Tensor]:
        """Rows change places within their groups, or whole groups leave too."""
        move = _shifted if all_stay and not rows.is_cuda else _taken
        moved = []
        for index, (leaf, mark) in enumerate(zip(leaves, self._marks, strict=True)):
            same = mark is not None and mark[0] is leaf and mark[1] == leaf._version
            leaf = leaf if same and all_stay else move(leaf, rows)
            self._marks[index] = (leaf, leaf._version) if same else None
            moved.append(leaf)
        return moved


def _taken(leaf: Tensor, rows: Int[Tensor, " b"]) -> Tensor:
    return leaf.index_select(0, rows)


def _shifted(leaf: Tensor, rows: Int[Tensor, " b"]) -> Tensor:
    """In place, and only the rows that do not stay: to know which takes a look, which a GPU would have to wait for."""
    places = (rows != torch.arange(len(rows), device=rows.device)).nonzero()[:, 0]
    return leaf.index_copy_(0, places, leaf.index_select(0, rows[places])) if len(places) else leaf
