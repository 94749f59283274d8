"""Prepared data, the folder that `prepare` writes: flat files of numbers that are mapped into memory, and one manifest.

manifest.json            format, fingerprint, and of every file its dtype, count and sha256
verified.json            size, time and inode of the files whose sha256 was verified
tokenizer.json
train.tokens.bin         ids, one sample after the other: uint16 or uint32
train.tokens.index.bin   int64: where each sample starts, and the end
train.source.*, train.choices.*, train.label.bin, train.number.bin, train.tags.bin    where the data have them

The folder is written beside its place, and moved there when it is complete. A writer holds a lock, which the system
releases when the process ends, however it ends. A work folder whose lock is free was left by a killed process, and the
next writer removes it.
"""

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TypeAlias

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from anyformer.core import decode
from anyformer.data.batching.packings.packing import PackingSpec
from anyformer.data.batching.row_plan import NumberFile, Side, Split
from anyformer.data.preparation.contents import Contents
from anyformer.data.preparation.encoding import Encoded
from anyformer.data.tokenizers.tokenizer import Tokenizer
from anyformer.data.tokenizers.vocabulary import Vocabulary, WordStarts
from anyformer.disk import identity, read_object, settled, sha256, sync, write
from anyformer.errors import DataError

MANIFEST, TOKENIZER, VERIFIED = "manifest.json", "tokenizer.json", "verified.json"
LOCK = "lock"
BLOCK = 1 << 20
_REBUILD = "Prepare the data again: delete the folder, or pass rebuild=True."


Entry: TypeAlias = tuple[str, int, str]
"""The entry of a file of numbers in the manifest: dtype, count, sha256."""
ENTRY = ("dtype", "count", "sha256")


class NumberWriter:
    """Appends numbers to a file and hashes them while they are written."""

    def __init__(self, path: Path, dtype: str):
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._file = path.open("wb", buffering=BLOCK)
        self._hash = hashlib.sha256()
        self.count, self.last = 0, 0

    def write(self, numbers: NDArray[Any]) -> None:
        content = np.ascontiguousarray(numbers, dtype=self._dtype).tobytes()
        self._file.write(content)
        self._hash.update(content)
        self.count += len(numbers)
        self.last = numbers[-1] if len(numbers) else self.last

    def close(self) -> Entry:
        """Flushes the file to disk, and returns its entry."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return self._dtype.name, self.count, self._hash.hexdigest()

    def abandon(self) -> None:
        self._file.close()


@dataclass(frozen=True)
class Manifest:
    """The description of a prepared folder; written last."""

    format: int
    fingerprint: str
    facts: Mapping[str, Any]
    """Counts, classes and settings of the prepared data."""
    files: Mapping[str, Entry]
    tokenizer_sha256: str = ""

    def write(self, folder: Path) -> None:
        entries = {name: dict(zip(ENTRY, entry, strict=True)) for name, entry in self.files.items()}
        write(folder / MANIFEST, json.dumps({**vars(self), "files": entries}, indent=1, ensure_ascii=False))

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        try:
            data = read_object(folder / MANIFEST)
            files = {name: tuple(entry[key] for key in ENTRY) for name, entry in data["files"].items()}
            return cls(**{**data, "files": files})
        except FileNotFoundError:
            raise DataError(f"{folder}: no {MANIFEST}: these are no prepared data. Name another folder.") from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{folder / MANIFEST}: cannot be read: {error}. {_REBUILD}") from None

    def verify(self, folder: Path) -> None:
        """DataError unless every file is as it was written. Files that were verified before are not hashed again while
        their size, time and inode are the same."""
        hashes = {name: digest for name, (_, _, digest) in self.files.items()} | {TOKENIZER: self.tokenizer_sha256}
        verified, identities = dict[str, list[int]](), dict[str, list[int]]()
        with suppress(OSError, ValueError):
            verified = read_object(folder / VERIFIED)
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
            with suppress(OSError):  # a folder that cannot be written is verified every time
                (folder / VERIFIED).write_text(json.dumps(identities), encoding="utf-8")


class ShardWriter:
    """Writes the files of all splits, and closes them also after an error."""

    def __init__(self, folder: Path, dtype: str):
        self._folder, self._dtype = folder, dtype
        self._files: dict[str, NumberWriter] = {}
        self.counts: dict[str, Counter[str]] = {}
        """Split -> number of documents, samples and tokens of each side, and of texts that were left out or cut."""

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.abandon()

    def write(self, split: str, encoded: Encoded) -> None:
        """Appends encoded records to the files of a split."""
        counts = self.counts.setdefault(split, Counter())
        for side, (tokens, lengths) in encoded.sides.items():
            if side not in counts:
                self._append(f"{split}.{side}.index", np.zeros(1, dtype=np.int64), "int64")
            ends = counts[side] + np.cumsum(lengths)
            if side == "tokens" and encoded.goes_on.any():
                ends = ends[~encoded.goes_on]
            self._append(f"{split}.{side}.index", ends, "int64")
            self._append(f"{split}.{side}", tokens, self._dtype)
        for name, values in encoded.numbers.items():
            self._append(f"{split}.{name}", values, values.dtype.name)
        counts.update(encoded.counts())

    def _append(self, name: str, values: NDArray[Any], dtype: str) -> None:
        if name not in self._files:
            self._files[name] = NumberWriter(self._folder / f"{name}.bin", dtype)
        self._files[name].write(values)

    def close(self) -> dict[str, Entry]:
        """Flushes all files to disk, and returns their entries in the manifest."""
        for split, counts in self.counts.items():
            index = self._files[f"{split}.tokens.index"]
            if index.last != counts["tokens"]:  # the end of the last text was left out
                index.write(np.array([counts["tokens"]]))
                counts.update(samples=1, documents=1)
        return {f"{name}.bin": file.close() for name, file in self._files.items()}


@contextmanager
def in_place_of(folder: Path) -> Iterator[Path]:
    """A new folder that replaces `folder` when the block ends without an error, and is removed otherwise."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{folder.name}.preparing-"
    for other in folder.parent.iterdir():
        if other.name.startswith(prefix):
            _remove_if_abandoned(other)
    work, lock = _work_folder(prefix, folder.parent)
    fresh = work / "new"
    try:
        fresh.mkdir()
        yield fresh
        sync(fresh)
        if folder.exists():
            os.replace(folder, work / "old")
        os.replace(fresh, folder)
        sync(folder.parent)
    finally:
        if (work / "old").exists() and not folder.exists():  # the new folder could not take its place
            os.replace(work / "old", folder)
        lock.release()
        shutil.rmtree(work, ignore_errors=True)


def _work_folder(prefix: str, parent: Path) -> tuple[Path, FileLock]:
    """An empty folder with its lock held. Another writer may remove it before the lock is taken: try again then."""
    while True:
        work = Path(mkdtemp(prefix=prefix, dir=parent))
        lock = FileLock(work / LOCK)
        with suppress(FileNotFoundError):
            lock.acquire()
            return work, lock


def _remove_if_abandoned(work: Path) -> None:
    """Removes a work folder whose writer has ended."""
    with suppress(OSError):  # it is locked, or not ours, or another process removes it just now
        if (work / LOCK).is_file():
            with FileLock(work / LOCK, timeout=0):
                shutil.rmtree(work, ignore_errors=True)
            shutil.rmtree(work)  # Windows cannot delete the lock while it is held


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
