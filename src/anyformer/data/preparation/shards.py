"""Prepared data on disk: flat files of numbers that are mapped into memory, described by one manifest.

manifest.json            format, fingerprint, and of every file its dtype, count and sha256
verified.json            size, time and inode of the files whose sha256 was verified
tokenizer.json
train.tokens.bin         ids, one sample after the other: uint16 or uint32
train.tokens.index.bin   int64: where each sample starts, and the end
train.source.*, train.choices.*, train.label.bin, train.number.bin, train.tags.bin    where the data have them
"""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyformer.data.batching.row_plan import Integers
from anyformer.data.preparation.atomic_folder import identity, settled
from anyformer.disk import sha256
from anyformer.errors import DataError

MANIFEST, TOKENIZER, VERIFIED = "manifest.json", "tokenizer.json", "verified.json"
BLOCK = 1 << 20


@dataclass(frozen=True)
class ShardEntry:
    """The entry of a file of numbers in the manifest."""

    dtype: str
    count: int
    sha256: str


class NumberWriter:
    """Appends numbers to a file and hashes them while they are written."""

    def __init__(self, path: Path, dtype: str):
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._file = path.open("wb", buffering=BLOCK)
        self._hash = hashlib.sha256()
        self.count = 0

    def write(self, numbers: NDArray[Any]) -> None:
        content = np.ascontiguousarray(numbers, dtype=self._dtype).tobytes()
        self._file.write(content)
        self._hash.update(content)
        self.count += len(numbers)

    def close(self) -> ShardEntry:
        """Flushes the file to disk, and returns its entry."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return ShardEntry(self._dtype.name, self.count, self._hash.hexdigest())

    def abandon(self) -> None:
        self._file.close()


@dataclass(frozen=True)
class NumberFile:
    """A file of numbers, mapped when it is first read; a copy in another process maps it anew."""

    path: Path
    entry: ShardEntry

    @cached_property
    def array(self) -> NDArray[Any]:
        dtype = np.dtype(self.entry.dtype).newbyteorder("<")
        return np.memmap(self.path, dtype, "r", shape=(self.entry.count,)) if self.entry.count else np.zeros(0, dtype)

    def __getstate__(self) -> tuple[Path, ShardEntry]:
        return self.path, self.entry

    def __setstate__(self, state: tuple[Path, ShardEntry]) -> None:
        self.__dict__.update(path=state[0], entry=state[1])


@dataclass(frozen=True)
class Side:
    """Sequences of ids, one for each sample."""

    tokens: NumberFile
    index: NumberFile

    def __len__(self) -> int:
        return self.index.entry.count - 1

    def __getitem__(self, sample: int) -> Integers:
        start, stop = self.index.array[sample : sample + 2]
        return self.tokens.array[start:stop].astype(np.int64)

    def starts(self, samples: Integers) -> Integers:
        """Index of the first token of each sample among all tokens."""
        return np.asarray(self.index.array[samples], dtype=np.int64)

    def lengths(self, samples: Integers) -> Integers:
        """Number of tokens of each sample."""
        return np.asarray(self.index.array[samples + 1] - self.index.array[samples], dtype=np.int64)


@dataclass(frozen=True)
class Split:
    """The samples of one split."""

    name: str
    sides: Mapping[str, Side]
    """tokens, and of pairs source; choices holds several sequences for each sample."""
    numbers: Mapping[str, NumberFile]
    """label, number, cut, source_cut: one for each sample; tags: one for each token."""

    def __len__(self) -> int:
        return len(self.sides["tokens"])


@dataclass(frozen=True)
class Manifest:
    """The description of a prepared folder; written last."""

    format: int
    fingerprint: str
    facts: Mapping[str, Any]
    """Counts, classes and settings of the prepared data."""
    files: Mapping[str, ShardEntry]
    tokenizer_sha256: str = ""

    def write(self, folder: Path) -> None:
        data = {**vars(self), "files": {name: vars(entry) for name, entry in self.files.items()}}
        with (folder / MANIFEST).open("w", encoding="utf-8") as file:
            json.dump(data, file, indent=1, ensure_ascii=False)
            file.flush()
            os.fsync(file.fileno())

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        try:
            data = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            return cls(**{**data, "files": {name: ShardEntry(**entry) for name, entry in data["files"].items()}})
        except FileNotFoundError:
            raise DataError(f"{folder}: no {MANIFEST}: these are no prepared data. Name another folder.") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{folder / MANIFEST}: cannot be read: {error}. {_REBUILD}") from None

    def verify(self, folder: Path) -> None:
        """DataError unless every file is as it was written. Files that were verified before are not hashed again while
        their size, time and inode are the same."""
        hashes = {name: entry.sha256 for name, entry in self.files.items()} | {TOKENIZER: self.tokenizer_sha256}
        verified, identities = _verified(folder), dict[str, list[int]]()
        for name, expected in hashes.items():
            try:
                identities[name] = identity(folder / name)
                if verified.get(name) == identities[name]:
                    continue
                digest = sha256(folder / name)
            except OSError as error:
                raise DataError(f"{folder / name}: {error.strerror}. {_REBUILD}") from None
            if digest != expected:
                raise DataError(f"{folder / name}: truncated or changed since it was written. {_REBUILD}")
        if identities != verified and settled(identities.values()):
            with suppress(OSError):  # a cache that cannot be written to is verified every time
                (folder / VERIFIED).write_text(json.dumps(identities), encoding="utf-8")


def _verified(folder: Path) -> dict[str, list[int]]:
    """Name -> identity of the files that were verified before."""
    try:
        identities: dict[str, list[int]] = json.loads((folder / VERIFIED).read_text(encoding="utf-8"))
        return identities
    except (OSError, ValueError):
        return {}


_REBUILD = "Prepare the data again: delete the folder, or pass rebuild=True."


@dataclass
class SplitWriter:
    """The files of one split."""

    folder: Path
    split: str
    dtype: str
    writers: dict[str, NumberWriter] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)

    def numbers(self, name: str, values: NDArray[Any], dtype: str) -> None:
        """Appends to a plain file."""
        if name not in self.writers:
            self.writers[name] = NumberWriter(self.folder / f"{self.split}.{name}.bin", dtype)
        self.writers[name].write(values)

    def sequences(self, side: str, tokens: Integers, lengths: Integers) -> None:
        """Appends sequences, given end to end, to a side."""
        end = self.ends.setdefault(side, 0)
        if f"{side}.index" not in self.writers:
            self.numbers(f"{side}.index", np.zeros(1, dtype=np.int64), "int64")
        self.numbers(side, tokens, self.dtype)
        self.numbers(f"{side}.index", end + np.cumsum(lengths), "int64")
        self.ends[side] = end + int(lengths.sum())

    def close(self) -> dict[str, ShardEntry]:
        return {f"{self.split}.{name}.bin": writer.close() for name, writer in self.writers.items()}

    def abandon(self) -> None:
        for writer in self.writers.values():
            writer.abandon()
