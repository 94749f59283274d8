"""The frame of a call: positions, padding and documents of its tokens; and operations on decoding states.

Every transformation of a frame is a method of it, so that a new field has one place to be added to.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from anyformer.core.fields import describes_fields
from anyformer.errors import Problem, SpecError


class Marks(NamedTuple):
    """The integers of each token that mask rules and position schemes compare; None: not set."""

    position: Tensor
    segment: Tensor | None = None
    order: Tensor | None = None
    stream: Tensor | None = None
    prefix: Tensor | None = None
    type: Tensor | None = None

    def as_queries(self) -> "Marks":
        """[b t] -> [b t 1], to broadcast against keys."""
        return Marks(*(None if mark is None else mark[..., :, None] for mark in self))  # type: ignore[arg-type]

    def as_keys(self) -> "Marks":
        """[b s] -> [b 1 s], to broadcast against queries."""
        return Marks(*(None if mark is None else mark[..., None, :] for mark in self))  # type: ignore[arg-type]


class ReadingMarks(NamedTuple):
    """Marks of objectives that do not read left to right; each is compared by one mask rule."""

    prefix: Int[Tensor, " b"] | None = None
    """Number of tokens at the beginning of a row that a prefix language model reads in both directions."""
    order: Int[Tensor, "b t"] | None = None
    """Rank of each token in a permuted reading order."""
    stream: Int[Tensor, "b t"] | None = None
    """0: content, 1: query; the two streams of a permutation language model."""


class AlignedCursor(NamedTuple):
    """Every row of the state holds exactly `past` tokens, without gaps: new tokens go to the same slots in all rows."""

    past: int


class ContiguousCursor(NamedTuple):
    """Every row of the state holds all tokens before its own positions, without gaps; rows may differ in length."""

    end: int | None = None
    """Exclusive upper bound of the positions after this call, if the host knows it; later slots are empty."""


class RaggedCursor(NamedTuple):
    """Rows of the state may have gaps: the state itself records which slots are filled."""

    end: int
    """Exclusive upper bound of the positions after this call; later slots are empty."""


Cursor: TypeAlias = AlignedCursor | ContiguousCursor | RaggedCursor
"""What the host knows about the tokens in a decoding state. Without it every slot has to be checked."""


class DocumentBounds(NamedTuple):
    """Where documents begin if the rows of a packed batch are concatenated; the padding of a row is one of them."""

    bounds: Int[Tensor, " n"]
    """Index of the first token of each document, then the number of all tokens, repeated up to a length that few
    batches differ in: a compiled graph is specific to it."""
    longest: int
    """Upper bound of the number of tokens of a document."""


@describes_fields
@dataclass(frozen=True, kw_only=True, eq=False)
class Memory:
    """The output of an encoder, as a decoder reads it: one vector for each source token, which is not a state."""

    x: Float[Tensor, "b s d"]
    valid: Bool[Tensor, "b s"] | None = None
    segments: Int[Tensor, "b s"] | None = None
    """Packed sources: a packed target attends only to the source with its own segment number."""
    layers: tuple[Tensor, ...] = ()
    """Input of the encoder's first layer, then the output of each layer, the last one as in `x`. Kept if a part of the
    decoder has `needs_source_layers`; empty if a layer changed the length."""
    final: Any = None
    """Final states of the encoder's recurrent parts, in their order: initial states for a recurrent decoder."""
    inputs: Float[Tensor, "b s d"] | None = None
    """Input of the encoder's first layer."""
    losses: Mapping[str, Tensor] = field(default_factory=dict)
    """Auxiliary losses of the encoder's parts."""

    def mask(self) -> Bool[Tensor, "b s"]:
        """The mask of valid tokens, also where `valid` is None."""
        return torch.ones_like(self.x[..., 0], dtype=torch.bool) if self.valid is None else self.valid


def memory_of(memory: Memory | None, kind: str) -> Memory:
    """The encoder's output, or an error that names the kind of part that needs it."""
    if memory is None:
        raise SpecError(f"{kind} needs the encoder's output: Frame(memory=module.encode(source)).")
    return memory


class StackPlace(NamedTuple):
    """Where in a stack a part runs."""

    inputs: Float[Tensor, "b t d"] | None = None
    """Input of the first layer; set by the model if one of its parts has `needs_inputs`."""
    layer: int = 0
    """Number of the layer; set by the stack if one of its parts has `needs_layer`."""


@describes_fields
@dataclass(frozen=True, kw_only=True, eq=False)
class Frame:
    """What a model knows about the tokens of one call besides their vectors."""

    positions: Int[Tensor, "b t"] | None = None
    """Position of each token in its document. None: 0..t-1, the fast path. Required with a state."""
    valid: Bool[Tensor, "b t"] | None = None
    """False: padding, which changes neither a state nor another token. None: all tokens are valid."""
    segments: Int[Tensor, "b t"] | None = None
    """Document number of each token of a packed row: tokens of different segments do not see each other."""
    types: Int[Tensor, "b t"] | None = None
    """Token types (BERT's sentence A and B)."""
    marks: ReadingMarks | None = None
    """Prefix, order and stream, for objectives that do not read left to right."""
    memory: Memory | None = None
    """The encoder's output, for cross-attention."""
    place: StackPlace | None = None
    """Where in the stack a part runs, for parts that need to know."""
    layout: Cursor | DocumentBounds | None = None
    """What the host knows about where tokens lie in memory, so that kernels can skip the rest: the cursor of a decoding
    state, or the bounds of packed documents. Results do not depend on it."""

    @property
    def plain(self) -> bool:
        """True: positions are 0..t-1 in every row and there are no other marks: a mask depends on the length alone."""
        return self.positions is None and self.segments is None and self.marks is None

    @property
    def same_positions(self) -> bool:
        """True: all rows are known to have the same positions, because there is one row or one is expanded."""
        return self.positions is None or self.positions.shape[0] == 1 or self.positions.stride(0) == 0

    @property
    def cursor(self) -> Cursor | None:
        """What the host knows about the tokens in the decoding state."""
        return None if isinstance(self.layout, DocumentBounds) else self.layout

    @property
    def document_bounds(self) -> DocumentBounds | None:
        """Where the documents of packed rows begin, if it was computed."""
        return self.layout if isinstance(self.layout, DocumentBounds) else None

    def positions_for(self, x: Shaped[Tensor, "b t d"]) -> Int[Tensor, "#b t"]:
        """The positions of x's tokens; a single row 0..t-1 if none are set."""
        if self.positions is not None:
            return self.positions
        return torch.arange(x.shape[1], device=x.device)[None]

    def marks_for(self, x: Float[Tensor, "b t d"]) -> Marks:
        """All integers that masks and position schemes compare, for x's tokens."""
        if self.marks is None:
            return Marks(self.positions_for(x), self.segments, type=self.types)
        prefix = None if self.marks.prefix is None else self.marks.prefix[:, None]
        return Marks(self.positions_for(x), self.segments, self.marks.order, self.marks.stream, prefix, self.types)

    def document_starts(self, x: Shaped[Tensor, "b t d"], state: Any = None) -> Bool[Tensor, "b t"] | None:
        """True for tokens before which a recurrence resets its state: valid tokens at position 0, or of another segment
        than the valid token before. None: only the first token of each row."""
        if self.positions is None and state is not None:
            raise SpecError("a state needs frame.positions, which tell whether a row continues or begins anew.")
        if self.positions is None and self.segments is None:
            return None
        starts = (self.positions_for(x) == 0).expand(x.shape[:2])
        if self.segments is not None:
            places = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2])
            last_valid = places if self.valid is None else places.where(self.valid, 0).cummax(1).values
            before = F.pad(self.segments.gather(1, last_valid), (1, 0))[:, :-1]
            starts = starts | ((self.segments != before) & (places > 0))
        return starts if self.valid is None else starts & self.valid

    def with_positions(self, x: Float[Tensor, "b t d"]) -> "Frame":
        """The same frame with explicit positions [b t], which a state requires."""
        if self.positions is not None:
            return self
        return replace(self, positions=self.positions_for(x).expand(x.shape[:2]))

    def reversed(self, x: Float[Tensor, "b t d"]) -> "Frame":
        """The frame of x.flip(1): every document's last valid token is at position 0."""
        if self.valid is None and self.plain:
            return self._each_token(lambda tokens: tokens.flip(1), layout=None)
        valid = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if self.valid is None else self.valid
        starts, rank = self.document_starts(x), valid.cumsum(1)
        after = rank[:, -1:] + 1  # rank of the first token of the next document, or one past the last token
        if starts is not None:
            ranks = rank.where(starts, after).flip(1).cummin(1).values.flip(1)
            after = torch.cat((ranks[:, 1:], after), dim=1)
        positions = (after - 1 - rank).clamp(min=0)
        return self._each_token(lambda tokens: tokens.flip(1), positions=positions.flip(1), layout=None)

    def at_step(self, t: int) -> "Frame":
        """The frame of token t of each row, for a part that is called token by token. Positions must be set."""
        cursor = self.cursor
        layout = AlignedCursor(cursor.past + t) if isinstance(cursor, AlignedCursor) else cursor
        return self._each_token(lambda tokens: tokens[:, t : t + 1], layout=layout)

    def take(self, rows: Int[Tensor, " n"]) -> "Frame":
        """The frame of some rows. Document bounds are dropped: they count the tokens of all rows."""
        taken = self.map(lambda tensor: tensor[rows])
        return taken if self.document_bounds is None else replace(taken, layout=None)

    def expand(self, rows: int) -> "Frame":
        """The frame of a single row for `rows` copies of it, the encoder's output included."""

        def expanded(tensor: Tensor) -> Tensor:
            return tensor.expand(rows, *tensor.shape[1:]) if len(tensor) == 1 else tensor

        frame = replace(self.map(expanded), layout=None)
        if self.memory is None:
            return frame
        names = [name for name in vars(self.memory) if name != "losses"]
        changes = {name: tree_map_only(Tensor, expanded, getattr(self.memory, name)) for name in names}
        return replace(frame, memory=replace(self.memory, **changes))

    def map(self, change: Callable[[Tensor], Tensor]) -> "Frame":
        """The frame with `change` applied to every tensor, except those of `memory`."""
        return Frame(**{name: tree_map_only(Tensor, change, value) for name, value in vars(self).items()})

    def _each_token(self, change: Callable[[Tensor], Tensor], **changes: Any) -> "Frame":
        """The frame with `change` applied to all tensors that have one value a token, and some fields replaced."""
        names = ("positions", "valid", "segments", "types", "place")
        fields = {name: tree_map_only(Tensor, change, getattr(self, name)) for name in names}
        if self.marks is not None:
            fields["marks"] = ReadingMarks(self.marks.prefix, *tree_map_only(Tensor, change, self.marks[1:]))
        return replace(self, **{**fields, **changes})


def check_inputs(tokens: object, frame: object) -> None:
    """Raises SpecError for token ids or a frame of other types or shapes, before a part fails on them."""
    if not isinstance(tokens, Tensor):
        text = f"must be a tensor of token ids, got {type(tokens).__name__}. Write torch.tensor([[1, 2, 3]])."
        raise SpecError(problems=[Problem("tokens", text)])
    if tokens.dim() != 2 or tokens.is_floating_point():
        text = f"must be token ids of the shape [batch, length], got {list(tokens.shape)} of {tokens.dtype}"
        advice = ". Add the batch: tokens[None]." if tokens.dim() == 1 else "."
        raise SpecError(problems=[Problem("tokens", text + advice)])
    if not isinstance(frame, Frame):
        advice = "Padding is Frame(valid=...), the source of an encoder-decoder Frame(memory=module.encode(source))."
        raise SpecError(problems=[Problem("frame", f"expected a Frame, got {type(frame).__name__}. {advice}")])
    for name in ("valid", "segments", "types"):
        values = getattr(frame, name)
        if values is not None and (not isinstance(values, Tensor) or values.shape != tokens.shape):
            got = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
            text = f"must be a tensor of the shape of the tokens, {list(tokens.shape)}, got {got}."
            raise SpecError(problems=[Problem(f"frame.{name}", text)])
    if frame.valid is not None and frame.valid.dtype != torch.bool:
        text = f"must be bool, True for tokens and False for padding, got {frame.valid.dtype}. Write valid=mask.bool()."
        raise SpecError(problems=[Problem("frame.valid", text)])
    if frame.memory is not None and not isinstance(frame.memory, Memory):
        text = f"expected a Memory, got {type(frame.memory).__name__}. Write memory=module.encode(source)."
        raise SpecError(problems=[Problem("frame.memory", text)])


State: TypeAlias = Any
"""What a part carries from one call to the next: a tree of tensors with the batch first. Recurrent parts sum up all
tokens so far in a state of fixed size; the output of an encoder is a `Memory`."""
S = TypeVar("S")


def reorder(state: State, rows: Int[Tensor, " n"], into: State | None = None) -> State:
    """Selects rows of the batch (beam search, compaction); `into`: buffers to write them to."""
    if into is None:
        return tree_map(lambda leaf: leaf.index_select(0, rows), state)
    return tree_map(lambda leaf, buffer: torch.index_select(leaf, 0, rows, out=buffer), state, into)


def fork(state: S) -> S:
    """A deep copy; needed to keep a state, since a part consumes the one that it is called with."""
    copy: S = tree_map(torch.clone, state)
    return copy


def detach(state: State) -> State:
    """The state without its autograd history, as one training segment passes it to the next."""
    return tree_map(lambda leaf: leaf.detach(), state)


def nbytes(state: State) -> int:
    """Bytes of all tensors of a state."""
    return sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(state))
