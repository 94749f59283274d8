"""The tensors of one training step, and the documents in their rows: special tokens at their ends, their ids as lists.

A shared row holds several documents, whose ends the data have marked: with segments or, where documents see each other,
with `Batch.starts`. Any other row is one document.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from anyformer.core import DocumentBounds, Frame
from anyformer.data.tokenizers.vocabulary import Vocabulary

Change = Callable[[Tensor], Tensor]
T = TypeVar("T", bound="RowTensors")


@dataclass(frozen=True, kw_only=True, eq=False)
class RowTensors:
    """A group of tensors whose first dimension is the rows of a batch: moved, pinned and indexed together."""

    def mapped(self, change: Change) -> Self:
        """The group with every tensor changed; None stays None."""
        changed: dict[str, Any] = {each.name: _mapped(getattr(self, each.name), change) for each in fields(self)}
        return replace(self, **changed)


@dataclass(frozen=True, kw_only=True, eq=False)
class RowLabels(RowTensors):
    """Labels of each row, from the data or made by an objective."""

    label: Shaped[Tensor, " b"] | None = None
    """Class, or a number where labels are measured."""
    number: Float[Tensor, " b"] | None = None
    """Number, where labels are numbers."""
    tags: Int[Tensor, "b t"] | None = None
    """Class of each token; -1: none."""
    choices: Int[Tensor, "b k t"] | None = None
    """Tokens of the answers to choose from, padded; an answer that does not exist is padding alone."""
    weight: Float[Tensor, " b"] | None = None
    """How much the label of each row counts; None: 1 each."""
    task: Int[Tensor, " b"] | None = None
    """Task of a mixture that the row belongs to."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Continuation(RowTensors):
    """How rows that were cut out of a longer text are connected with it."""

    before: Int[Tensor, " b"]
    """The token before the row in its document; -1: the document begins here."""
    row: Int[Tensor, " b"] | None = None
    """Row of the stream, which the same row of the next batch continues; None: rows are not continued."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch(RowTensors):
    """Token ids and what is known about them. Data provide tokens and frame; an objective adds targets and weights."""

    tokens: Int[Tensor, "b t"]
    frame: Frame
    """`frame.valid` alone tells tokens from padding."""
    features: Float[Tensor, "b t f"] | None = None
    """Input vectors of positions that are no tokens."""
    targets: Int[Tensor, "b t"] | None = None
    """The token that each position should predict."""
    weight: Float[Tensor, "b t"] | None = None
    """How much each position counts in the loss. From the data: 0 for tokens that repeat text only to fill up a row."""
    target_positions: Int[Tensor, "b k"] | None = None
    """Positions with a target, filled up with others to one width; None: all positions."""
    source: "Batch | None" = None
    """The input of the encoder; for a pair from the data, the text of which `tokens` is the target."""
    starts: Bool[Tensor, "b t"] | None = None
    """First token of each document, in rows whose documents see each other; otherwise `frame.segments` shows it."""
    word_starts: Bool[Tensor, "b t"] | None = None
    """First token of each word, if the tokenizer shows it."""
    truncated: Bool[Tensor, " b"] | None = None
    """The text of the row was cut, so that no <eos> may be added; None: unknown, or the data mark ends themselves."""
    continuation: Continuation | None = None
    labels: RowLabels = RowLabels()
    inputs: RowTensors | None = None
    """Tensors that an objective prepares for its loss, as a dataclass that it defines."""
    row: Int[Tensor, " b"] | None = None
    """In a mixture and its parts: row of the batch from which each row was made."""
    parts: "Mapping[str, Batch]" = field(default_factory=dict)
    """Task of a mixture -> the batch that it made from this one."""

    @property
    def shared(self) -> bool:
        """Whether a row may hold several documents, whose ends the data have marked."""
        return self.frame.segments is not None or self.starts is not None

    @property
    def valid(self) -> Bool[Tensor, "b t"]:
        """The tokens that exist."""
        valid = self.frame.valid
        return torch.ones_like(self.tokens, dtype=torch.bool) if valid is None else valid

    @property
    def counted(self) -> Bool[Tensor, "b t"]:
        """The tokens that exist and have a weight; of a batch from the data, the tokens of the text."""
        return self.valid if self.weight is None else self.valid & (self.weight > 0)

    @property
    def document_starts(self) -> Bool[Tensor, "b t"]:
        """First token of each document in each row; a row that goes on inside a document starts one, too."""
        counted, segments = self.counted, self.frame.segments
        same = torch.zeros_like(counted)
        same[:, 1:] = counted[:, :-1]
        if segments is not None:
            same[:, 1:] &= segments[:, 1:] == segments[:, :-1]
        first = counted & ~same
        return first if self.starts is None else first | self.starts

    def inputs_as(self, kind: type[T]) -> T:
        """The tensors that the objective prepared, as the dataclass of that objective."""
        assert isinstance(self.inputs, kind)
        return self.inputs

    def to(self, device: str | torch.device) -> "Batch":
        """The batch on another device, copied asynchronously."""
        # A copy from pageable memory would block the host until the GPU has finished its queue.
        batch = self.pinned() if torch.device(device).type == "cuda" else self
        return batch.mapped(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> "Batch":
        """The batch in pinned memory, from which a GPU copies without the host."""
        return self.mapped(lambda tensor: tensor.pin_memory() if tensor.is_cpu else tensor)

    def take(self, rows: Int[Tensor, " n"]) -> "Batch":
        """Some of the rows, and the rows that the tasks of a mixture made from them."""
        some = replace(self, parts={}).mapped(lambda tensor: tensor[rows])
        some = replace(some, frame=self.frame.take(rows))
        parts = {}
        for name, part in self.parts.items():
            assert part.row is not None and some.row is not None
            made_from_them = torch.isin(part.row, some.row).nonzero()[:, 0]
            if len(made_from_them):
                parts[name] = part.take(made_from_them)
        return replace(some, parts=parts)

    @property
    def shape(self) -> Hashable:
        """Fields, shapes and types of all tensors, and the values of all else: batches with equal ones run the same
        operations."""
        return _shape(self)

    def with_rows(self, height: int) -> "Batch":
        """The batch with copies of its first row below, which have weight 0, up to a height."""
        assert not self.parts and (self.weight is not None or self.labels.label is not None)
        rows = torch.arange(height)
        real = rows < len(self.tokens)
        filled = self.take(rows.where(real, 0))
        for side in (filled, filled.source):
            if side is not None and side.weight is not None:
                side.weight[~real] = 0.0
        if filled.labels.label is None:
            return filled
        return replace(filled, labels=replace(filled.labels, weight=real.float()))


def _shape(value: Any) -> Hashable:
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    if isinstance(value, RowTensors | Frame):
        return type(value), *(_shape(getattr(value, each.name)) for each in fields(value))
    if isinstance(value, Mapping):
        return tuple((name, _shape(item)) for name, item in value.items())
    return (type(value), *map(_shape, value)) if isinstance(value, tuple) else value


def _mapped(value: Any, change: Change) -> Any:
    """A field of a batch with every tensor in it changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, RowTensors):
        return value.mapped(change)
    if isinstance(value, Frame):
        return value.map(change)
    if isinstance(value, Mapping):
        return {name: _mapped(item, change) for name, item in value.items()}
    return value


_FEWEST = 64
"""Smallest number of bounds; it is filled up to a power of two, so that few sizes need few graphs."""


def bounded(batch: Batch) -> Batch:
    """The batch, its source and its parts with the bounds of their documents in the frames."""
    parts = {name: bounded(part) for name, part in batch.parts.items()}
    frame, source = _bounded(batch.frame), None if batch.source is None else bounded(batch.source)
    if source is not None:
        frame, source = _as_long(frame, source.frame), replace(source, frame=_as_long(source.frame, frame))
    return replace(batch, frame=frame, source=source, parts=parts)


def _bounded(frame: Frame) -> Frame:
    """The frame with bounds, unless a document has invalid positions inside, which bounds cannot express."""
    segments, valid = frame.segments, frame.valid
    if segments is None or frame.layout is not None or not (valid is None or valid.equal(segments >= 0)):
        return frame
    return replace(frame, layout=DocumentBounds(bounds_of(segments), segments.shape[1]))


def _as_long(frame: Frame, other: Frame) -> Frame:
    """The frame with as many bounds as the other side of a pair: few combinations of sizes, few graphs."""
    mine, theirs = frame.document_bounds, other.document_bounds
    if mine is None or theirs is None:
        return frame
    more = mine.bounds[-1:].expand(max(0, len(theirs.bounds) - len(mine.bounds)))
    return replace(frame, layout=mine._replace(bounds=torch.cat((mine.bounds, more))))


def bounds_of(segments: Tensor) -> Tensor:
    """Bounds of the documents of all rows, laid end to end."""
    starts = torch.ones_like(segments, dtype=torch.bool)
    starts[:, 1:] = segments[:, 1:] != segments[:, :-1]
    first = starts.flatten().nonzero()[:, 0]
    size = max(_FEWEST, 1 << len(first).bit_length())
    return torch.cat((first, first.new_full((size - len(first),), segments.numel()))).int()


def shifted(batch: Batch, first: int) -> Tensor:
    """Tokens [b t] with every document shifted right by one, `first` in front of it; its last token drops out."""
    return batch.tokens.roll(1, dims=1).masked_fill(batch.document_starts, first).where(batch.counted, batch.tokens)


def continued(batch: Batch, first: int) -> Tensor:
    """[b t]: as `shifted`, but a row that begins inside a document has the token before it in front."""
    tokens = shifted(batch, first)
    if batch.continuation is not None:
        before = batch.continuation.before
        tokens[:, 0] = before.where((before >= 0) & batch.counted[:, 0], tokens[:, 0])
    return tokens


def closed(batch: Batch, last: int, goes_on: Tensor | None = None) -> Batch:
    """The batch with `last` behind each document that does not end in it; rows with `goes_on` are left open."""
    if batch.shared:
        return batch
    there = batch.counted
    end = (torch.arange(1, there.shape[1] + 1) * there).amax(1)  # [b], the position behind the last token
    rows = torch.arange(len(end))
    open_ = (batch.tokens[rows, (end - 1).clamp(min=0)] != last) & there.any(1)
    open_ = open_ if goes_on is None else open_ & ~goes_on
    if not open_.any():
        return batch
    valid = F.pad(there, (0, 1))
    valid[rows[open_], end[open_]] = True
    wide = _wider(batch, valid)
    wide.tokens[rows[open_], end[open_]] = last
    return wide


def framed(batch: Batch, words: Vocabulary) -> Batch:
    """The batch with <cls> in front of each document and <sep> behind it. Shared rows have no room for both: there the
    document moves right by one, <cls> comes in front and the closing <eos> drops out."""
    if batch.shared:
        return replace(batch, tokens=shifted(batch, words.cls))
    ended = closed(batch, words.sep)
    there = F.pad(ended.counted, (0, 1))
    wide = _wider(ended, there | there.roll(1, dims=1))
    return replace(wide, tokens=shifted(wide, words.cls))


def framed_row(ids: Sequence[int], words: Vocabulary, *, packed: bool) -> list[int]:
    """One text as `framed` lays it out: without <sep> if rows are shared."""
    return [words.cls, *ids] if packed else [words.cls, *ids, words.sep]


def documents(batch: Batch, words: Vocabulary) -> list[list[int]]:
    """The ids of each document, without padding and special tokens at its ends."""
    index, there = batch.document_starts.flatten().cumsum(0) - 1, text(batch, words).flatten()
    sizes = torch.bincount(index[there]).tolist()
    return [piece.tolist() for piece in batch.tokens.flatten()[there].split(sizes) if len(piece)]


def text(batch: Batch, words: Vocabulary) -> Tensor:
    """True where a token is neither padding nor a special token that marks an end [b t]."""
    ends = torch.tensor((words.pad, words.bos, words.eos, words.sep, words.cls))
    return batch.counted & ~torch.isin(batch.tokens, ends)


def _wider(batch: Batch, valid: Tensor) -> Batch:
    """The rows with one more column, and without types and order, which are unknown there."""
    return replace(batch, tokens=F.pad(batch.tokens, (0, 1)), frame=Frame(valid=valid))
