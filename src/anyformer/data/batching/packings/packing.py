"""The base of every packing: plans which texts share a batch, and lays out their tokens.

Planning takes lengths only and happens in the main process; collating looks up the tokens, in worker processes if there
are any. A new packing is one file with a subclass of `PackingSpec`: two methods, and the facts that training checks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from anyformer.core import Spec
from anyformer.data.batching.collate import FIELDS, Arrays
from anyformer.data.batching.row_plan import Integers, LoaderPosition
from anyformer.data.preparation.contents import Contents
from anyformer.data.preparation.encoding import SPECIAL_TOKENS
from anyformer.data.preparation.shards import Side, Split
from anyformer.data.tokenizers.vocabulary import Vocabulary, WordStarts
from anyformer.errors import DataError, SpecError


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
