"""The form of a source's records: single texts or pairs, labels, tags, choices; and a fair sample of their text.

Which split a record belongs to: the one that the source names, or a pure function of (seed, group or text).

The same text is never trained on and tested on: without groups it hashes to one split; with groups or given splits,
training loses what is held out elsewhere.
"""

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from typing import Any, Literal, TypeAlias

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


MOST_CLASSES = 1 << 16


@dataclass(frozen=True)
class Contents:
    """The form that all records share."""

    pair: bool = False
    classes: tuple[str, ...] = ()
    """Labels in order of their ids; empty where there are none, or where they are measured numbers."""
    numbers: bool = False
    """Labels are numbers."""
    tags: tuple[str, ...] = ()
    """Word labels in order of their ids."""
    choices: int = 0
    """Largest number of answers of a record."""

    @property
    def form(self) -> str:
        """The form of a record in one word: tags, choices, pair, labelled_pair, classes, numbers or text."""
        if self.tags or self.choices:
            return "tags" if self.tags else "choices"
        if self.pair:
            return "labelled_pair" if self.classes else "pair"
        return "classes" if self.classes else "numbers" if self.numbers else "text"

    @property
    def plain(self) -> bool:
        """Whether records are single texts and nothing else, which can be cut anywhere."""
        return self.unlabelled and not self.pair

    @property
    def unlabelled(self) -> bool:
        """Whether records are texts or pairs of them and nothing else, which can share rows."""
        return not (self.classes or self.numbers or self.tags or self.choices)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "Contents":
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
        }
        return cls(**values)


@dataclass
class ContentsCollector:
    """Collects the contents, record by record."""

    first: Record | None = None
    labels: dict[str, tuple[bool, str]] = field(default_factory=dict)
    """Label -> whether training has it, and where it was first seen."""
    tags: set[str] = field(default_factory=set)
    choices: int = 0
    numbers: bool = True
    integers: bool = True

    def see(self, record: Record, split: str) -> None:
        self.first = self.first or record
        if _form(record) != _form(self.first):
            raise _differ(record, self.first)
        self.tags.update(record.tags)
        self.choices = max(self.choices, len(record.choices))
        if record.choices:
            _check_choice(record)
        elif record.label is not None:
            self._see_label(record.label, record, split)

    def close(self) -> Contents:
        assert self.first is not None
        measured = self.numbers and not self.integers
        if not measured and len(self.labels) > MOST_CLASSES:
            raise DataError(f"more than {MOST_CLASSES} different labels, such as {next(iter(self.labels))!r}.")
        unseen = next(((label, where) for label, (known, where) in self.labels.items() if not known), None)
        if unseen and not self.numbers:
            raise DataError(
                f"{unseen[1]}: label {unseen[0]!r} never occurs in training. Move a few of its records there."
            )
        ordered = sorted(self.labels, key=float) if self.numbers else sorted(self.labels)
        return Contents(
            pair=self.first.target is not None,
            classes=() if measured else tuple(ordered),
            numbers=bool(self.labels) and self.numbers,
            tags=tuple(sorted(self.tags)),
            choices=self.choices,
        )

    def _see_label(self, label: str, record: Record, split: str) -> None:
        known, where = self.labels.get(label, (False, record.where))
        # a class that the hash happened to hold out whole is bad luck, not a mistake in the data
        known = known or split == "train" or record.split is None
        if label not in self.labels:
            value = _number(label)
            self.numbers = self.numbers and value is not None
            self.integers = self.integers and value is not None and value.is_integer()
        if label in self.labels or len(self.labels) <= MOST_CLASSES:
            self.labels[label] = known, where


def _form(record: Record) -> tuple[bool, bool, bool, bool]:
    return record.target is not None, record.label is not None, bool(record.tags), bool(record.choices)


def _differ(record: Record, first: Record) -> DataError:
    forms = zip(("target", "label", "tags", "choices"), _form(record), _form(first), strict=True)
    name, here = next((name, here) for name, here, there in forms if here != there)
    have, lack = (record, first) if here else (first, record)
    return DataError(f"{lack.where}: no {name}, but {have.where} has one. All records must be of one form.")


def _check_choice(record: Record) -> None:
    label = record.label or ""
    if not label.isdecimal() or int(label) >= len(record.choices):
        raise DataError(f"{record.where}: label {label!r} should be the index of one of {len(record.choices)} choices.")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


class TextSample:
    """Texts of a stream up to a number of bytes, from its beginning to its end.

    The n-th text gets the mark n * golden ratio mod 1, which spreads evenly, and stays while that is below a limit; the
    limit is halved whenever too much has been collected.
    """

    def __init__(self, most_bytes: int):
        self._most, self._bytes, self._seen, self._limit = most_bytes, 0, 0, 1 << 64
        self._texts: list[tuple[int, int, str]] = []

    def see(self, text: str) -> None:
        mark = self._seen * 0x9E3779B97F4A7C15 % (1 << 64)
        self._seen += 1
        if mark >= self._limit:
            return
        text = text[: self._most]
        size = len(text.encode("utf-8", "surrogatepass"))
        self._texts.append((mark, size, text))
        self._bytes += size
        while self._bytes > self._most and len(self._texts) > 1:
            self._limit //= 2
            self._texts = [item for item in self._texts if item[0] < self._limit] or self._texts[:1]
            self._bytes = sum(size for _, size, _ in self._texts)

    def __iter__(self) -> Iterator[str]:
        return (text for _, _, text in self._texts)
