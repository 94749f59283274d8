"""The base of every packing: plans which texts share a batch, and lays out their tokens.

Planning takes lengths only and happens in the main process; collating looks up the tokens, in worker processes if there
are any. A new packing is one file with a subclass of `PackingSpec`: two methods, and the facts that training checks.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anyformer.core import Frame, Spec
from anyformer.data.batching.batch import Batch, Continuation, RowLabels
from anyformer.data.batching.row_plan import Integers, LoaderPosition, RowPlan, Side, Split, few_sizes
from anyformer.data.preparation.contents import Contents
from anyformer.data.preparation.encoding import CUT, SPECIAL_TOKENS, UNTAGGED
from anyformer.data.tokenizers.vocabulary import Vocabulary, WordStarts
from anyformer.errors import DataError, SpecError

Arrays: TypeAlias = dict[str, NDArray[Any]]
"""The arrays of a batch by field; `FIELDS` lists the names. They may come from a worker process."""
SIDE = ("tokens", "valid", "segments", "positions", "features", "weight", "starts", "word_starts", "truncated")
"""Fields of `Batch` and of its frame."""
FIELDS = (
    *SIDE,
    *(f"source.{name}" for name in SIDE),
    *(f"continuation.{field.name}" for field in fields(Continuation)),
    *(f"labels.{field.name}" for field in fields(RowLabels)),
)


@dataclass(frozen=True, kw_only=True)
class PackingTask:
    """The samples of a split, and how large their batches are."""

    samples: Split
    words: Vocabulary
    word_starts: WordStarts | None = None
    """Which tokens begin a word, if the tokenizer shows it."""
    context: int
    """Longest row."""
    batch_tokens: int
    """Tokens of a batch at most, padding included."""
    seed: int = 0
    shuffle: bool = True
    """False: samples in the order of the source, as near as batches allow."""
    even: bool = False
    """True: batches have one shape, or few, for code that is specific to a shape. The last batch of an epoch gets empty
    rows up to the height of the others, and texts in rows of their own get more padding."""

    @property
    def texts(self) -> list[Side]:
        """The sides that a row has room for: one of a document, two of a pair."""
        return [side for name, side in self.samples.sides.items() if name != "choices"]

    @property
    def rows(self) -> int:
        """Full rows that fit into a batch."""
        return self.batch_tokens // (len(self.texts) * self.context)

    @property
    def tokens(self) -> int:
        """Tokens of all documents."""
        return self.samples.sides["tokens"].tokens.count

    def lengths(self, samples: Integers) -> Integers:
        """Tokens of some samples, [side, sample]."""
        return np.stack([side.lengths(samples) for side in self.texts])


@dataclass(frozen=True, kw_only=True)
class PackingSpec(Spec):
    """How the texts of a split are laid out in batches."""

    by_name = True

    alone: ClassVar[bool] = False
    """Each text has a row of its own, and the objective adds its special tokens; otherwise the data mark where texts
    end, and rows cannot carry labels."""
    reads_pairs: ClassVar[bool] = False
    """Pairs of texts can be laid out, too."""
    keeps_whole: ClassVar[bool] = False
    """Documents are stored in full length and cut where a row ends; otherwise no sample is longer than `context`."""
    one_shape: ClassVar[bool] = False
    """All batches of an epoch have one shape (the last one with `even`), so that a compiler needs one graph."""
    marks_documents: ClassVar[bool] = False
    """A row holds several texts that `Frame.segments` tells apart; parts that mix them do not fit."""
    continues: ClassVar[bool] = False
    """Row i goes on in row i of the next batch, and positions count from the start of a document."""

    def resolve(self, contents: Contents) -> "PackingSpec":
        """The packing that suits some data: this one, unless it leaves the choice open."""
        return self

    def batches(self, task: PackingTask, start: LoaderPosition) -> Iterator[tuple[Any, LoaderPosition]]:
        """The plan of each batch of an epoch from a position on, and the position after it."""
        raise NotImplementedError

    def collate(self, task: PackingTask, plan: Any) -> Arrays:
        """The arrays of a planned batch."""
        raise NotImplementedError

    def check_arrays(self, arrays: Arrays) -> None:
        """SpecError unless `collate` returned what a batch of this packing needs, and nothing else."""
        where = f"data.packing={self.kind}: collate returned"
        if unknown := sorted(arrays.keys() - set(FIELDS)):
            raise SpecError(f"{where} {unknown[0]!r}, which is no field of a batch. Fields: {', '.join(FIELDS)}.")
        if "tokens" not in arrays:
            raise SpecError(f"{where} no 'tokens', the ids [b, t] of a batch.")
        if self.alone and "truncated" not in arrays:
            raise SpecError(
                f"{where} no 'truncated' [b]: a packing with alone=True must mark the rows whose text was cut, or the "
                "objective adds <eos> where the text goes on. Collator returns it."
            )
        if not self.alone and not arrays.keys() & {"segments", "starts"}:
            raise SpecError(
                f"{where} neither 'segments' nor 'starts' [b, t]: with alone=False the data mark where texts end, and "
                "one of both must show where they begin. Set alone=True if each row holds one text."
            )

    def refuse(self, contents: Contents, context: int) -> None:
        """DataError if records of this form cannot be laid out."""
        labels, pairs = not self.alone and not contents.unlabelled, contents.pair and not self.reads_pairs
        if labels or pairs:
            forms = "documents and pairs without labels" if self.reads_pairs else "plain documents"
            others = "bucket, pack or auto" if contents.unlabelled else "bucket or auto"
            what = "pairs" if pairs else "labels"
            raise DataError(f"data.packing={self.kind} is for {forms}, but these have {what}. Use {others}.")
        if (self.alone or contents.pair) and context <= SPECIAL_TOKENS:
            raise DataError(f"data.context={context} leaves no room for a text beside {SPECIAL_TOKENS} special tokens.")


@dataclass(frozen=True)
class Collator:
    """Makes the arrays of a batch from a row plan: of whole samples, one or several in a row."""

    split: Split
    pad: int
    width: int | None
    """Columns of rows that hold several documents, separated by segments; None: one document each, padded on the right
    to the longest."""
    word_starts: WordStarts | None = None
    """Which tokens begin a word, if the tokenizer shows it."""
    widest: int | None = None
    """Without `width`: rows are padded to one of a few widths, at most to this one; None: to the longest."""

    def arrays(self, plan: RowPlan) -> Arrays:
        """The tokens of a plan with their labels, their segments and positions if samples share rows, and the marks
        of truncated texts and of word starts."""
        arrays, sides = self._side("tokens", plan), self.split.sides
        if self.word_starts is not None:
            starts = self.word_starts.of(arrays["tokens"])
            first = plan.columns(sides["tokens"].lengths(plan.samples))
            starts[plan.rows, first] = True  # a document begins with a word, whatever its first token is
            arrays["word_starts"] = starts & arrays["valid"]
        if "source" in sides:
            arrays |= {f"source.{name}": array for name, array in self._side("source", plan).items()}
        for field, name in (("labels.label", "label"), ("labels.number", "number")):
            if (values := self.split.values(name, plan.samples)) is not None:
                arrays[field] = values
        for field, name in (("truncated", CUT["tokens"]), ("source.truncated", CUT["source"])):
            if (values := self.split.values(name, plan.samples)) is not None:
                arrays[field] = values.astype(np.bool_)
        if "tags" in self.split.numbers:
            spots = self._spots(sides["source" if "source" in sides else "tokens"], plan)
            arrays["labels.tags"] = spots.grid(self.split.numbers["tags"].at(spots.tokens), UNTAGGED)
        if "choices" in sides:
            arrays["labels.choices"] = self._choices(plan)
        return arrays

    def _side(self, name: str, plan: RowPlan) -> Arrays:
        side = self.split.sides[name]
        spots = self._spots(side, plan)
        arrays = {
            "tokens": spots.grid(side.tokens.array[spots.tokens], self.pad),
            "valid": spots.grid(np.ones(len(spots.there), dtype=np.bool_), False),
        }
        if self.width is None:
            return arrays
        arrays["segments"] = spots.grid(np.repeat(plan.numbers, side.lengths(plan.samples)), -1)
        arrays["positions"] = spots.grid(spots.inside, 0)
        return arrays

    def _spots(self, side: Side, plan: RowPlan) -> "_Spots":
        width = self.width
        if width is None and self.widest is not None:
            longest = int(side.lengths(plan.samples).max(initial=0))
            width = max(longest, min(few_sizes(longest), self.widest))
        return _Spots.of(side, plan, width)

    def _choices(self, plan: RowPlan) -> NDArray[Any]:
        """The answers [b k t], padded; an answer that does not exist is padding alone."""
        side = self.split.sides["choices"]
        several = len(side) // len(self.split)
        answers = RowPlan.one_each((plan.samples[:, None] * several + np.arange(several)).ravel())
        longest = int(side.lengths(answers.samples).max(initial=0))
        spots = _Spots.of(side, answers, max(1, longest))  # a column also if all answers are empty
        return spots.grid(side.tokens.array[spots.tokens], self.pad).reshape(plan.height, several, spots.width)


@dataclass(frozen=True, eq=False)
class _Spots:
    """Where the tokens of a plan come from and go to, one number for each token."""

    tokens: Integers
    """Index among all tokens of the side."""
    inside: Integers
    """Index in the sample: 0, 1, 2, ..."""
    there: Integers
    """Index on the grid, row by row."""
    height: int
    width: int

    @classmethod
    def of(cls, side: Side, plan: RowPlan, width: int | None) -> "_Spots":
        """`width`: columns of the grid; None: as many as the longest sample has."""
        lengths = side.lengths(plan.samples)
        width = int(lengths.max(initial=0)) if width is None else width
        ends = np.cumsum(lengths)
        inside = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)
        tokens = np.repeat(side.starts(plan.samples), lengths) + inside
        there = np.repeat(plan.rows * width + plan.columns(lengths), lengths) + inside
        return cls(tokens, inside, there, plan.height, width)

    def grid(self, values: NDArray[Any], rest: int) -> NDArray[Any]:
        """Values in their places and `rest` in the others."""
        dtype = np.bool_ if values.dtype == np.bool_ else np.int64
        cells: NDArray[Any] = np.full(self.height * self.width, rest, dtype=dtype)
        cells[self.there] = values
        return cells.reshape(self.height, self.width)


def batch_of(arrays: Arrays) -> Batch:
    """The arrays as a batch of tensors."""
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    source = _under("source.", tensors)
    return replace(_side_of(tensors), source=_side_of(source) if source else None)


def _side_of(tensors: Mapping[str, Tensor]) -> Batch:
    continuation = _under("continuation.", tensors)
    batch: dict[str, Any] = {name: tensors[name] for name in SIDE if name in tensors}
    frame = {name: batch.pop(name, None) for name in ("valid", "segments", "positions")}
    return Batch(
        **batch,
        frame=Frame(**frame),
        continuation=Continuation(**continuation) if continuation else None,
        labels=RowLabels(**_under("labels.", tensors)),
    )


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
