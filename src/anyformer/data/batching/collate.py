"""Sheets to batches: looks up the tokens that a sheet speaks of and lays them out."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anyformer.core import Frame
from anyformer.data.batching.batch import Batch
from anyformer.data.batching.order import Integers
from anyformer.data.batching.row_plan import RowPlan
from anyformer.data.preparation.encoding import CUT, UNTAGGED
from anyformer.data.preparation.prepared import Split
from anyformer.data.preparation.shards import Side
from anyformer.data.tokenizers.word_starts import WordStarts

LABELS = ("label", "number")
Arrays: TypeAlias = dict[str, NDArray[Any]]
"""A batch on its way from another process: dotted names."""


@dataclass(frozen=True)
class Collator:
    """Makes the arrays of a batch from a sheet."""

    split: Split
    pad: int
    width: int | None
    """Columns of rows that hold several documents, told apart by segments; None: one each, filled up on the right."""
    word_starts: WordStarts | None = None
    """Which tokens begin a word, where the tokenizer shows it."""

    def widths(self, sheet: RowPlan) -> dict[str, int]:
        """Columns of each side; of single documents as many as the longest needs."""
        texts = {name: side for name, side in self.split.sides.items() if name != "choices"}
        return {name: self.width or _longest(side, sheet) for name, side in texts.items()}

    def arrays(self, sheet: RowPlan, widths: Mapping[str, int]) -> Arrays:
        """The tokens of a sheet with all that is known about them."""
        found = self._side("tokens", sheet, widths["tokens"])
        if self.word_starts is not None:
            starts = self.word_starts.of(found["tokens"])
            first = sheet.columns(self.split.sides["tokens"].lengths(sheet.samples))
            starts[sheet.rows, first] = True  # whatever a document begins with
            found["labels.word_starts"] = starts & found["valid"]
        if "source" in widths:
            found |= {f"source.{name}": array for name, array in self._side("source", sheet, widths["source"]).items()}
        for name, numbers in self.split.numbers.items():
            if name in LABELS:
                found[f"labels.{name}"] = np.array(numbers.array[sheet.samples])
        for side, name in CUT.items():
            if name in self.split.numbers:
                prefix = "" if side == "tokens" else f"{side}."
                found[f"{prefix}labels.cut"] = np.array(self.split.numbers[name].array[sheet.samples], dtype=np.bool_)
        if "tags" in self.split.numbers:
            text = "source" if "source" in widths else "tokens"
            spots = _Spots.of(self.split.sides[text], sheet, widths[text])
            found["labels.tags"] = spots.grid(self.split.numbers["tags"].array[spots.tokens], UNTAGGED)
        if "choices" in self.split.sides:
            found["labels.choices"] = self._choices(sheet)
        return found

    def _side(self, name: str, sheet: RowPlan, width: int) -> Arrays:
        side = self.split.sides[name]
        spots = _Spots.of(side, sheet, width)
        found = {
            "tokens": spots.grid(side.tokens.array[spots.tokens], self.pad),
            "valid": spots.grid(np.ones(len(spots.there), dtype=np.bool_), False),
        }
        if self.width is None:
            return found
        found["segments"] = spots.grid(np.repeat(sheet.numbers, side.lengths(sheet.samples)), -1)
        found["positions"] = spots.grid(spots.inside, 0)
        return found

    def _choices(self, sheet: RowPlan) -> NDArray[Any]:
        """[b k t], filled up with padding; an answer that is not there is padding alone."""
        side = self.split.sides["choices"]
        several = len(side) // len(self.split)
        answers = RowPlan.one_each((sheet.samples[:, None] * several + np.arange(several)).ravel())
        spots = _Spots.of(side, answers, _longest(side, answers))
        return spots.grid(side.tokens.array[spots.tokens], self.pad).reshape(sheet.height, several, spots.width)


@dataclass(frozen=True, eq=False)
class _Spots:
    """Where the tokens of a sheet come from and go to, one number for each token."""

    tokens: Integers
    """Among all tokens of the side."""
    inside: Integers
    """0, 1, 2, ... in each sample."""
    there: Integers
    """On the grid, row by row."""
    height: int
    width: int

    @classmethod
    def of(cls, side: Side, sheet: RowPlan, width: int) -> "_Spots":
        lengths = side.lengths(sheet.samples)
        ends = np.cumsum(lengths)
        inside = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)
        tokens = np.repeat(side.starts(sheet.samples), lengths) + inside
        there = np.repeat(sheet.rows * width + sheet.columns(lengths), lengths) + inside
        return cls(tokens, inside, there, sheet.height, width)

    def grid(self, values: NDArray[Any], rest: int) -> NDArray[Any]:
        """Values in their places and `rest` in the others."""
        dtype = np.bool_ if values.dtype == np.bool_ else np.int64
        found: NDArray[Any] = np.full(self.height * self.width, rest, dtype=dtype)
        found[self.there] = values
        return found.reshape(self.height, self.width)


def _longest(side: Side, sheet: RowPlan) -> int:
    return int(side.lengths(sheet.samples).max(initial=0))


def batch_of(arrays: Arrays) -> Batch:
    """The same as tensors."""
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    source = _side_of(_under("source.", tensors)) if "source.tokens" in tensors else None
    return replace(_side_of(tensors), source=source)


def _side_of(tensors: Mapping[str, Tensor]) -> Batch:
    valid, segments, positions = (tensors.get(name) for name in ("valid", "segments", "positions"))
    frame = Frame(valid=valid, segments=segments, positions=positions)
    return Batch(tokens=tensors["tokens"], frame=frame, labels=_under("labels.", tensors))


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def micro_batches(batch: Batch, rows: int) -> Iterator[Batch]:
    """The same rows in the same order, a few at a time."""
    for start in range(0, len(batch.tokens), rows):
        yield batch.take(torch.arange(start, min(start + rows, len(batch.tokens))))
