"""Rows of a batch between two decoding steps, and the frames of the model calls that prefill and step them.

The layout of weights for decoding, whose matrix products have few rows.

On a CPU such products are up to twice as fast if weights are stored by columns. On a GPU they have kernels of their
own: `ops.decode_linear`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from anyformer.core import (
    AlignedCursor,
    ContiguousCursor,
    Embedding,
    Frame,
    Linear,
    Model,
    RaggedCursor,
    ReadingMarks,
    State,
    reorder,
)
from anyformer.errors import DataError
from anyformer.ops.decode_linear import use_decode_linears


class VocabularySizes(NamedTuple):
    """Number of token ids, from 0 on; None if it is not known."""

    prompt: int | None
    source: int | None

    @classmethod
    def of(cls, model: Model) -> "VocabularySizes":
        """The sizes of a model's embeddings. An encoder-decoder may have two; the encoder's is the first."""
        sizes = [_rows(module) for module in model.modules() if isinstance(module, Embedding)]
        return cls(sizes[-1], sizes[0]) if sizes else cls(None, None)


def check_known(what: str, tokens: Sequence[int], size: int | None) -> None:
    """Refuses ids that the model has no embedding for."""
    wrong = next((token for token in tokens if token < 0 or (size is not None and token >= size)), None)
    if wrong is not None:
        raise DataError(f"{what}: the token id {wrong} is outside the vocabulary of {size or 'this model'}.")


def _rows(embedding: Embedding) -> int | None:
    tables = [name for name, slices in embedding.roles.items() if slices[0][0] == "embed"]
    return int(embedding.get_parameter(tables[0]).shape[0]) if tables else None


def for_writing(model: Model) -> Model:
    """The model with its weights laid out for decoding, in place. Shapes and values do not change; it can still be
    trained."""
    devices = {parameter.device.type for parameter in model.parameters()}
    if devices == {"cuda"}:
        use_decode_linears(model)
    for module in model.modules() if devices == {"cpu"} else ():
        if isinstance(module, Linear):
            module.weight.data = module.weight.data.t().contiguous().t()
    return model


@dataclass(eq=False)
class Decoding:
    """Rows of a batch between two decoding steps. A step, a selection or a join consumes its state."""

    state: State
    positions: Int[Tensor, " b"]
    """Position of the next token of each row."""
    logits: Float[Tensor, "b v"]
    """Scores of the next token of each row."""
    room: int
    """Number of positions for which the state has memory."""
    reach: int
    """Exclusive upper bound of the positions in the state, known without reading a tensor."""
    aligned: bool
    """True if every row has exactly `reach` tokens."""

    @property
    def rows(self) -> int:
        return self.positions.shape[0]

    def select(self, rows: Int[Tensor, " n"]) -> "Decoding":
        """The decoding of these rows, in this order; a row may occur several times."""
        state, positions, logits = reorder((self.state, self.positions, self.logits), rows)
        return replace(self, state=state, positions=positions, logits=logits)

    def join(self, other: "Decoding") -> "Decoding":
        """The rows of both, these first. Both states must have the same room."""
        mine, theirs = ((each.state, each.positions, each.logits) for each in (self, other))
        state, positions, logits = concatenate(mine, theirs)
        aligned = self.aligned and other.aligned and self.reach == other.reach
        return Decoding(state, positions, logits, self.room, max(self.reach, other.reach), aligned)


Step = Callable[[Decoding, Tensor], None]
"""Feeds one token [b] to each row of a decoding, whose state, positions and logits change."""


def eager_step(model: Model, decoding: Decoding, tokens: Int[Tensor, " b"]) -> None:
    """Feeds one token to each row by a plain call of the model."""
    past = decoding.reach if decoding.aligned else None
    reach = min(decoding.reach + 1, decoding.room)
    out = model(tokens[:, None], step_frame(decoding.positions[:, None], past=past, reach=reach), decoding.state)
    advance(decoding, out.state, out.y[:, -1])


def advance(decoding: Decoding, state: State, logits: Float[Tensor, "b v"]) -> None:
    """Stores the results of a step. A finished row that is still in the batch stays at the last position."""
    decoding.state, decoding.logits = state, logits
    decoding.positions = (decoding.positions + 1).clamp(max=decoding.room - 1)
    decoding.reach = min(decoding.reach + 1, decoding.room)


def prompt_frame(lengths: Int[Tensor, " b"], longest: int, *, aligned: bool) -> Frame:
    """The frame of prompts that are padded on the right to the longest."""
    positions = torch.arange(longest, device=lengths.device).expand(len(lengths), -1)
    marks = ReadingMarks(prefix=lengths)
    if aligned:
        return Frame(positions=positions, marks=marks, layout=AlignedCursor(0))
    valid = positions < lengths[:, None]
    return Frame(positions=positions, valid=valid, marks=marks, layout=RaggedCursor(longest))


def step_frame(positions: Int[Tensor, "b 1"], *, past: int | None = None, reach: int | None = None) -> Frame:
    """The frame of one more token for each row. `past`: tokens of every row before it, if all have as many."""
    if past is not None:
        return Frame(positions=positions, layout=AlignedCursor(past))
    return Frame(positions=positions, layout=ContiguousCursor(reach))


def concatenate(first: Any, second: Any) -> Any:
    """Two trees of tensors with the batch first as one: the rows of the first, then those of the second."""
    return tree_map(lambda one, two: torch.cat((one, two)), first, second)


def shapes(leaves: Sequence[Tensor]) -> tuple[Any, ...]:
    """Shape, dtype and device of each tensor: what a captured or traced step depends on."""
    return tuple((leaf.shape, leaf.dtype, leaf.device) for leaf in leaves)


class SharedLeaves:
    """Which tensors of a state are still equal for all beams of a sentence, because no step has written to them.

    Beams start as copies of one row. A tensor that no step writes, such as the keys of an encoder, need not move when
    beams change places. Torch counts the writes to a tensor on a CPU; kernels of a GPU are not counted, so there every
    tensor moves.
    """

    def __init__(self, state: State, *, copies: bool):
        leaves = tree_flatten(state)[0]
        counted = copies and not torch.is_inference_mode_enabled() and not any(leaf.is_cuda for leaf in leaves)
        self._marks = [(leaf, leaf._version) if counted else None for leaf in leaves]

    def reorder(self, state: State, rows: Int[Tensor, " b"], *, all_stay: bool) -> State:
        """Moves rows within their sentences (`all_stay`), or takes the rows of some sentences only."""
        leaves, tree = tree_flatten(state)
        move = _move_in_place if all_stay and not rows.is_cuda else _take
        moved = []
        for index, (leaf, mark) in enumerate(zip(leaves, self._marks, strict=True)):
            shared = mark is not None and mark[0] is leaf and mark[1] == leaf._version
            leaf = leaf if shared and all_stay else move(leaf, rows)
            self._marks[index] = (leaf, leaf._version) if shared else None
            moved.append(leaf)
        return state if all(new is old for new, old in zip(moved, leaves, strict=True)) else tree.unflatten(moved)


def _take(leaf: Tensor, rows: Int[Tensor, " b"]) -> Tensor:
    return leaf.index_select(0, rows)


def _move_in_place(leaf: Tensor, rows: Int[Tensor, " b"]) -> Tensor:
    """Copies only the rows that move. Finding them reads values, for which a GPU would have to be synchronised."""
    places = (rows != torch.arange(len(rows), device=rows.device)).nonzero()[:, 0]
    return leaf.index_copy_(0, places, leaf.index_select(0, rows[places])) if len(places) else leaf
