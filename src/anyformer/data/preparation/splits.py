"""Which split a record belongs to: the one that the source names, or a pure function of (seed, group or text).

The same text is never trained on and tested on: without groups it hashes to one split; with groups or given splits,
training loses what is held out elsewhere.
"""

import math
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anyformer.data.record import Record
from anyformer.errors import DataError

SPLITS = ("train", "valid", "test")
HELD_OUT = ("valid", "test")
SplitBy: TypeAlias = Literal["auto", "given", "group", "fraction"]


def digest(text: str, key: int = 0) -> int:
    """64 bits of a text."""
    secret = key.to_bytes(16, "little", signed=True)
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, key=secret).digest(), "little")


@dataclass(frozen=True)
class Splitter:
    """record -> train, valid or test."""

    by: SplitBy
    seed: int
    shares: tuple[tuple[str, float], ...]
    """Share of each held-out split that is cut off by hash; given splits are not among them."""
    held_out: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, dtype=np.uint64))
    """Digests of held-out texts that may occur in training too, sorted."""

    def assign(self, record: Record) -> str:
        """The split of a record, whether or not copies of it are held out."""
        split = self.source_split(record)
        return split if split in HELD_OUT else self.by_hash(self.place(record))

    def place(self, record: Record) -> float:
        """0..1: the same for all records of a group, or of a text."""
        if record.group is None and self.by == "group":
            raise DataError(f"{record.where}: no group, but data.split=group wants one for every record.")
        return digest(record.text if record.group is None else record.group, self.seed) / 2**64

    def leaks(self, records: list[Record]) -> list[bool]:
        """For each training record, whether its text is held out elsewhere."""
        if not len(self.held_out):
            return [False] * len(records)
        digests = np.array([digest(record.text) for record in records], dtype=np.uint64)
        nearest = np.searchsorted(self.held_out, digests).clip(max=len(self.held_out) - 1)
        return [bool(same) for same in self.held_out[nearest] == digests]

    def source_split(self, record: Record) -> str | None:
        """The split that the source names, unless the spec ignores it."""
        if self.by in ("group", "fraction"):
            return None
        if record.split is None and self.by == "given":
            raise DataError(f"{record.where}: no split, but data.split=given wants train, valid or test everywhere.")
        if record.split not in (None, *SPLITS):
            raise DataError(f"{record.where}: split {record.split!r} is none of {', '.join(SPLITS)}.")
        return record.split

    def by_hash(self, place: float) -> str:
        """The split of a record that the source did not hold out."""
        end = 0.0
        for name, share in self.shares:
            end += share
            if place < end:
                return name
        return "train"


class Survey:
    """Collects in a first pass over all records how to split them."""

    def __init__(self, splitter: Splitter):
        self.splitter = splitter
        self.records = 0
        self._held_out_splits: set[str] = set()
        self._named = array("Q")  # digests of texts that the source holds out
        self._texts, self._places = array("Q"), array("d")  # and of those that a hash does, with their place
        self._lowest, self._highest = 1.0, 0.0
        self._copies = False

    def see(self, record: Record) -> str:
        """The split of a record, as far as it is known in the first pass."""
        self.records += 1
        held_out = self.splitter.source_split(record)
        if held_out in HELD_OUT:
            self._held_out_splits.add(held_out)
            self._named.append(digest(record.text))
            return held_out
        place = self.splitter.place(record)
        split = self.splitter.by_hash(place)
        self._lowest, self._highest = min(self._lowest, place), max(self._highest, place)
        self._copies = self._copies or record.group is not None
        if split != "train" or place == self._lowest:
            self._texts.append(digest(record.text))
            self._places.append(place)
        return split

    def close(self) -> Splitter:
        """The splitter for the second pass: splits that the source names are not cut off again."""
        shares = tuple((name, share) for name, share in self.splitter.shares if name not in self._held_out_splits)
        settled = replace(self.splitter, shares=self._at_least_one(shares))
        if not self._copies and not self._named:  # hashed by their texts: copies are in the same split
            return settled
        below = sum(share for _, share in settled.shares)
        texts = np.array(self._texts, dtype=np.uint64)[np.array(self._places) < below]
        return replace(settled, held_out=np.unique(np.concatenate([texts, np.array(self._named, dtype=np.uint64)])))

    def _at_least_one(self, shares: tuple[tuple[str, float], ...]) -> tuple[tuple[str, float], ...]:
        """Shares for small data: if one split is cut off, neither it nor training is empty."""
        if len(shares) != 1 or self._lowest >= self._highest:
            return shares
        name, share = shares[0]
        return ((name, min(max(share, math.nextafter(self._lowest, 1.0)), self._highest)),)


def halves(records: Iterable[Record], share: float) -> Iterator[Record]:
    """A lone document, cut at a space: training reads its beginning, validation its end."""
    for record in records:
        middle = round(len(record.text) * (1 - share))
        cut = record.text.rfind(" ", 0, middle) + 1 or middle
        yield replace(record, text=record.text[:cut], split="train")
        yield replace(record, text=record.text[cut:], split="valid")
