"""Prepared data, the folder that `prepare` writes, and their batches, in an order that depends on the seed alone.

Each batch is a pure function of (seed, position): worker processes and micro-batches change which process builds a row,
never its content. The main process plans, which takes lengths only; workers look up the tokens.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.core import decode
from anyformer.data.batching.batch import Batch
from anyformer.data.batching.packings.packing import Arrays, PackingSpec, PackingTask, batch_of
from anyformer.data.batching.row_plan import LoaderPosition
from anyformer.data.preparation.contents import Contents
from anyformer.data.preparation.encoding import in_order
from anyformer.data.preparation.shards import TOKENIZER, Manifest, NumberFile, Side, Split
from anyformer.data.tokenizers.tokenizer import Tokenizer
from anyformer.data.tokenizers.vocabulary import Vocabulary, WordStarts
from anyformer.errors import DataError, SpecError


@dataclass(frozen=True)
class Prepared:
    """A prepared folder. Cheap to send to another process: files are mapped where they are read."""

    folder: Path
    manifest: Manifest
    words: Vocabulary

    @classmethod
    def open(cls, folder: str | Path) -> "Prepared":
        """Opens a prepared folder, and verifies its files."""
        folder = Path(folder)
        manifest = Manifest.read(folder)
        manifest.verify(folder)
        return cls(folder, manifest, Tokenizer.load(folder / TOKENIZER).words)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.load(self.folder / TOKENIZER)

    @cached_property
    def word_starts(self) -> WordStarts | None:
        """Which tokens begin a word; None if the tokenizer does not show it."""
        return self.tokenizer.word_starts

    @property
    def contents(self) -> Contents:
        return Contents.of(self.manifest.facts["contents"])

    @property
    def context(self) -> int:
        return int(self.manifest.facts["context"])

    @cached_property
    def packing(self) -> PackingSpec:
        """How texts are laid out in batches."""
        return decode(PackingSpec, self.manifest.facts["packing"])

    @property
    def packed_pairs(self) -> bool:
        """Whether a row holds several pairs."""
        return self.contents.pair and not self.packing.alone

    @property
    def longest(self) -> int:
        """Upper bound of positions: length of a row, or of the longest document if positions go on over rows."""
        if not self.packing.continues:
            return self.context
        indices = (self.split(name).sides["tokens"].index.array for name in self.counts)
        return max(int(np.diff(index).max(initial=0)) for index in indices)

    @property
    def longest_target(self) -> int | None:
        """Number of tokens of the longest target of the training pairs, <eos> included; None for other data."""
        if not self.contents.pair:
            return None
        index = self.split("train").sides["tokens"].index.array
        return int(np.diff(index).max(initial=0)) + self.packing.alone  # packed targets are stored with <eos>

    @property
    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """Split -> number of documents, samples and tokens, and of texts that were left out or cut."""
        counts: Mapping[str, Mapping[str, int]] = self.manifest.facts["splits"]
        return counts

    def split(self, name: str) -> Split:
        """The samples of train, valid or test."""
        if name not in self.counts:
            raise DataError(f"{self.folder}: there is no split {name!r}, only {', '.join(self.counts)}.")
        files = {
            file.removeprefix(f"{name}.").removesuffix(".bin"): NumberFile(self.folder / file, dtype, count)
            for file, (dtype, count, _) in self.manifest.files.items()
            if file.startswith(f"{name}.")
        }
        sides = {side: Side(files[side], files[f"{side}.index"]) for side in files if f"{side}.index" in files}
        used = {*sides, *(f"{side}.index" for side in sides)}
        return Split(sides, {file: numbers for file, numbers in files.items() if file not in used})

    def __reduce__(self) -> tuple[Any, ...]:
        return Prepared, (self.folder, self.manifest, self.words)  # without the cached properties


PREFETCH = 4
"""Batches that each worker builds in advance."""


@dataclass(frozen=True, kw_only=True)
class Loader:
    """Iterates over batches of about `batch_tokens` tokens, padding included, each with the position after it.

    Each epoch has every sample once; its last batch may be smaller.
    """

    prepared: Prepared
    split: str = "train"
    seed: int = 0
    batch_tokens: int
    workers: int = 0
    """Processes that build batches ahead; 0: none."""
    start: LoaderPosition = LoaderPosition()
    """The position that came with the last batch that was used."""
    epochs: int | None = None
    """Stop before this epoch; None: never."""
    shuffle: bool = True
    """False: samples in the order of the source, as near as batches allow."""
    even: bool = False
    """True: batches get empty rows or more padding, so that they have one shape, or few."""

    def __post_init__(self) -> None:
        if not len(self.prepared.split(self.split)):
            raise DataError(f"{self.prepared.folder}: the split {self.split!r} is empty.")
        pair, context = self.prepared.contents.pair, self.prepared.context
        if self.batch_tokens < (2 * context if pair else context):
            longest = f"a pair of data.context={context} each" if pair else f"a sequence of data.context={context}"
            raise SpecError(f"train.batch_tokens={self.batch_tokens} has no room for {longest}.")

    def __iter__(self) -> Iterator[tuple[Batch, LoaderPosition]]:
        task = PackingTask(
            samples=self.prepared.split(self.split),
            words=self.prepared.words,
            word_starts=self.prepared.word_starts,
            context=self.prepared.context,
            batch_tokens=self.batch_tokens,
            seed=self.seed,
            shuffle=self.shuffle,
            even=self.even,
        )
        build, plans = partial(_build, self.prepared.packing, task), self._plans(task)
        batches = in_order(build, plans, self.workers, PREFETCH) if self.workers else map(build, plans)
        return ((batch_of(arrays), position) for arrays, position in batches)

    def _plans(self, task: PackingTask) -> Iterator[tuple[Any, LoaderPosition]]:
        for epoch in count(self.start.epoch) if self.epochs is None else range(self.start.epoch, self.epochs):
            start = self.start if epoch == self.start.epoch else LoaderPosition(epoch)
            yield from self.prepared.packing.batches(task, start)


def _build(
    packing: PackingSpec, task: PackingTask, planned: tuple[Any, LoaderPosition]
) -> tuple[Arrays, LoaderPosition]:
    plan, position = planned
    arrays = packing.collate(task, plan)
    packing.check_arrays(arrays)
    return arrays, position
