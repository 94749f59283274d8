"""Prepared data: the folder that `prepare` writes, opened for reading."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.core import decode
from anyformer.data.batching.packings.packing import PackingSpec
from anyformer.data.preparation.contents import Contents
from anyformer.data.preparation.shards import TOKENIZER, Manifest, NumberFile, Side, Split
from anyformer.data.tokenizers.tokenizer import Tokenizer
from anyformer.data.tokenizers.vocabulary import Vocabulary, WordStarts
from anyformer.errors import DataError


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
