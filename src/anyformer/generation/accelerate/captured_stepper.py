"""The captured stepper: rounds of k model calls, each followed by the choice of the next tokens, in one CUDA graph.

Only after a round does the host read which tokens were chosen and which rows are finished. A row that finishes within a
round steps on in vain, at its last position if need be, and affects no other row.

`torch.compile(mode="reduce-overhead")` skips CUDA graphs without a warning when a state is written in place, so the
capture is done by hand: every tensor of a round keeps its address.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves

from anyformer.core import ContiguousCursor, Frame, Model, State, fork, reorder
from anyformer.generation.accelerate import fuse_step
from anyformer.generation.decoding import (
    Decoding,
    History,
    PendingTokens,
    Strategy,
    concatenate,
    first_choice,
    place_count,
    shapes,
)
from anyformer.ops.cuda_graphs import GraphPool
from anyformer.ops.devices import torch_kernels

Capture = Callable[[Callable[[], None]], Callable[[], None]]
ModelStep = Callable[[Tensor, Tensor, State], tuple[Tensor, State]]
"""(tokens [b 1], positions [b 1], state) -> logits [b v], state."""
_COMPILED_WARM_UP = 3
_RECOMPILES = 1024
"""Every batch size and every source length compiles a step of its own."""
_SHRINK = 4
"""A batch shrinks to this part of its size: half of a batch takes a GPU about as long, and each size is captured."""
_FEWEST_ROWS = 32
"""Rows below which a batch does not shrink: a GPU would hardly be faster."""


def captured(body: Callable[[], None], warm_up: int = 1) -> Callable[[], None]:
    """The body as one CUDA graph. A replay writes to the tensors that the last call of the body left."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warm_up):
            body()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    return GraphPool().capture(body)


def compiled_and_captured(body: Callable[[], None]) -> Callable[[], None]:
    """The same for a body with compiled functions."""
    # past the first limit a function compiled with fullgraph raises; the second counts over all engines
    limits = dict.fromkeys(("recompile_limit", "accumulated_recompile_limit"), _RECOMPILES)
    with torch._dynamo.config.patch(limits):
        return captured(body, _COMPILED_WARM_UP)


def write_back(buffers: State, values: State) -> None:
    """Copies values that were not written in place to the addresses of the buffers."""
    for buffer, value in zip(tree_leaves(buffers), tree_leaves(values), strict=True):
        if buffer is not value:
            buffer.copy_(value)


class RoundBuffers(NamedTuple):
    """All tensors that a round changes."""

    history: Any
    positions: Int[Tensor, " b"]
    state: State


class CapturedRound:
    """k steps of one shape and one strategy, in buffers of their own."""

    def __init__(self, rounds: "CapturedRounds", strategy: Strategy[Any], steps: int, room: int, start: RoundBuffers):
        # the strategy itself, not an equal one: the graph reads tensors that the sampler holds
        self.strategy, self.steps, self._room, self.buffers = strategy, steps, room, fork(start)
        self._step, self._choose = rounds.step, strategy.choice(rounds.compile)
        moves = strategy.parents(start.history) is not None
        self._static = self._unwritten(rounds.plain_step) if moves else [False] * len(tree_leaves(start.state))
        self._replay = rounds.capture(self._body)

    def __call__(self) -> Int[Tensor, "k b"]:
        """The tokens of each step, in a buffer that the next call overwrites."""
        self._replay()
        return self._tokens

    def _body(self) -> None:
        history, positions, state = self.buffers
        # two rows at least: compiled steps copy tensors that are not aligned to 16 bytes
        rows, pair = len(positions), positions if len(positions) > 1 else positions.expand(2)
        ahead = torch.arange(self.steps + 1, device=positions.device)[:, None]
        # now and after each step; a finished row stays at the last position
        *before, positions = [each[:rows] for each in (pair + ahead).clamp(max=self._room - 1)]
        (leaves, tree), tokens = tree_flatten(state), []
        for place, number in zip(before, self.strategy.draw(history, self.steps), strict=True):
            parents, pairs = self.strategy.parents(history), zip(leaves, self._static, strict=True)
            if parents is not None:  # to new memory, which the step after the next takes again
                leaves = [leaf if static else leaf.index_select(0, parents) for leaf, static in pairs]
            token = self.strategy.tokens(history)
            logits, state = self._step(token[:, None], place[:, None], tree.unflatten(leaves))
            stepped = zip(leaves, tree_leaves(state), self._static, strict=True)
            leaves = [old if static else new for old, new, static in stepped]
            history = self._choose(history, logits, number)
            tokens.append(self.strategy.tokens(history))
        self._tokens = torch.stack(tokens)
        write_back(self.buffers, RoundBuffers(history, positions, tree.unflatten(leaves)))

    def _unwritten(self, step: ModelStep) -> list[bool]:
        """Which tensors of the state no step writes to, such as keys of an encoder: beams share them.

        Torch counts writes, but not those of Triton kernels, so the values are compared as well.
        """
        history, positions, state = self.buffers
        leaves, tree = tree_flatten(fork(state))
        versions = [_version(leaf) for leaf in leaves]
        _, after = step(self.strategy.tokens(history)[:, None], positions[:, None], tree.unflatten(leaves))
        compared = zip(tree_leaves(after), leaves, versions, tree_leaves(state), strict=True)
        return [new is leaf and _version(new) == count and new.equal(old) for new, leaf, count, old in compared]


class CapturedRounds:
    """The captured rounds of a model, by shape. A round serves one stepper at a time and is reused after that one.

    Of each shape only rounds of the last strategy stay in memory: each holds a state of its own. `triton=False`:
    torch's kernels only.
    """

    def __init__(self, model: Model, *, compiled: bool, triton: bool = True, capture: Capture | None = None):
        def step(tokens: Tensor, positions: Tensor, state: State) -> tuple[Tensor, State]:
            out = model(tokens, Frame(positions=positions, layout=ContiguousCursor()), state)
            return out.y[:, -1], out.state

        options: dict[str, Any] = {"fullgraph": True, "dynamic": False, "backend": fuse_step.compiled}
        self.capture: Capture = capture or (compiled_and_captured if compiled else captured)
        self.plain_step, self.triton = step, triton
        self.step: ModelStep = torch.compile(step, **options) if compiled else step
        self._compiles, self._compiled = compiled, dict[Any, Any]()
        self._idle: dict[Hashable, list[CapturedRound]] = defaultdict(list)

    def compile(self, function: Any) -> Any:
        """The function, compiled once if steps are compiled."""
        if self._compiles and function not in self._compiled:
            self._compiled[function] = torch.compile(function, fullgraph=True, dynamic=False)
        return self._compiled.get(function, function)

    def take(self, strategy: Strategy[Any], steps: int, room: int, start: RoundBuffers) -> CapturedRound:
        """A round that begins with these values."""
        idle = self._idle[_key(steps, start)]
        taken = idle.pop() if idle else None
        if taken is None or taken.strategy != strategy:
            del taken  # frees its memory before the new round allocates
            with torch_kernels(not self.triton):
                taken = CapturedRound(self, strategy, steps, room, start)
        write_back(taken.buffers, start)
        return taken

    def release(self, used: CapturedRound) -> None:
        self._idle[_key(used.steps, used.buffers)].append(used)


class CapturedStepper(Generic[History]):
    """Runs captured rounds. Finished rows stay in a large batch until most of its places can be dropped.

    While the host reads the tokens of a round the next one runs, unless a row is known to reach its limit before.
    """

    def __init__(self, rounds: CapturedRounds, strategy: Strategy[History], steps: int):
        self._rounds, self._strategy, self._steps = rounds, strategy, steps
        self._loose: RoundBuffers | None = None  # values that no round holds yet
        self._round: CapturedRound | None = None
        self._ahead: PendingTokens | None = None
        self._room: int

    @property
    def history(self) -> History:
        return self._values.history  # type: ignore[no-any-return]

    @property
    def _values(self) -> RoundBuffers:
        values = self._loose if self._round is None else self._round.buffers
        assert values is not None
        return values

    def join(self, places: Sequence[int], decoding: Decoding, history: History) -> PendingTokens:
        assert self._ahead is None or not places
        with torch_kernels(not self._rounds.triton):
            history = first_choice(self._strategy, decoding, history)
        tokens = PendingTokens(self._strategy.tokens(history)[None])
        joined = RoundBuffers(history, decoding.positions, decoding.state)
        if places:
            joined = concatenate(self._selected(places), joined)
        self.close()
        self._loose, self._room = joined, decoding.room
        return tokens

    def select(self, places: Sequence[int]) -> Sequence[int]:
        """Fills the batch up with copies, or leaves finished rows where they are, so that few shapes are captured."""
        size, filled = place_count(self.history), filled_up(places)
        few = len(self._values.positions) <= _FEWEST_ROWS
        if self._round is not None and (few or _SHRINK * len(filled) > size):
            return places
        if filled != list(range(size)):
            values, ahead = self._selected(filled), self._ahead
            self.close()
            self._loose, self._ahead = values, ahead
            if ahead is not None:
                ahead.select(filled)
        return range(len(places))

    def advance(self, fewest: int) -> PendingTokens:
        if self._round is None:
            assert self._loose is not None
            self._round = self._rounds.take(self._strategy, self._steps, self._room, self._loose)
            self._loose = None
        tokens, self._ahead = self._ahead or PendingTokens(self._round()), None
        if fewest > self._steps:
            self._ahead = PendingTokens(self._round())
        return tokens

    def close(self) -> None:
        if self._round is not None:
            self._rounds.release(self._round)
        self._round = self._loose = self._ahead = None

    def _selected(self, places: Sequence[int]) -> RoundBuffers:
        values = self._values
        chosen = torch.tensor(places, device=values.positions.device)
        history, rows = self._strategy.select(values.history, chosen)
        return RoundBuffers(history, *reorder((values.positions, values.state), rows))


def filled_up(places: Sequence[int]) -> list[int]:
    """The places, and copies of the first up to a power of two."""
    return [*places, *[places[0]] * ((1 << (len(places) - 1).bit_length()) - len(places))]


def _key(steps: int, values: RoundBuffers) -> Hashable:
    return steps, shapes(tree_leaves(values))


def _version(leaf: Tensor) -> int:
    """How often torch has written to a tensor; tensors of inference mode are not counted."""
    return 0 if leaf.is_inference() else leaf._version
