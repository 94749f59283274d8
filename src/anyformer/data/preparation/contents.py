"""The first pass over all records: their splits, their form (pairs, labels, tags, choices), and a sample of their text.

A record belongs to the split that the source names, or that a hash of (seed, group or text) decides. No text is in
training and in a held-out split: without groups a text hashes to one split; with groups or splits of the source, copies
of held-out texts are removed from training. Of one text in pieces, each held-out split gets its share of the characters
at least, and enough for a score that means something.
"""

import math
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from itertools import accumulate
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from anyformer.data.record import Record
from anyformer.errors import DataError

T = TypeVar("T")
SPLITS = ("train", "valid", "test")
HELD_OUT = ("valid", "test")
ENOUGH, MOST = 12_000, 0.2
"""Minimum size of a held-out part of a single text in characters, about 2,000 tokens, and the largest share of the text
that this minimum may take."""
SplitBy: TypeAlias = Literal["auto", "given", "group", "fraction"]


def digest(text: str, key: int = 0) -> int:
    """A hash of 64 bits."""
    secret = key.to_bytes(16, "little", signed=True)
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, key=secret).digest(), "little")


@dataclass(frozen=True)
class Splitter:
    """Assigns records to train, valid or test."""

    by: SplitBy
    seed: int
    shares: tuple[tuple[str, float], ...]
    """Share of each held-out split that a hash selects; splits that the source names are not among them."""
    held_out: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, dtype=np.uint64))
    """Digests of held-out texts that may occur in training too, sorted."""

    def assign(self, record: Record) -> str:
        """The split of a record, whether or not copies of it are held out."""
        split = self.source_split(record)
        return split if split in HELD_OUT else self.by_hash(self.place(record))

    def place(self, record: Record) -> float:
        """0..1: the same for all records of a group, or of a text."""
        if record.group is None and self.by == "group":
            raise DataError(
                f"{record.where}: no group, but data.split=group needs one in every record. Use "
                "data.split=fraction, or add the group."
            )
        return digest(record.text if record.group is None else record.group, self.seed) / 2**64

    def leaks(self, records: list[Record]) -> list[bool]:
        """For each training record, whether its text is held out elsewhere."""
        if not len(self.held_out):
            return [False] * len(records)
        digests = np.array([digest(record.text) for record in records], dtype=np.uint64)
        nearest = np.searchsorted(self.held_out, digests).clip(max=len(self.held_out) - 1)
        leaks: list[bool] = (self.held_out[nearest] == digests).tolist()
        return leaks

    def source_split(self, record: Record) -> str | None:
        """The split that the source names, unless the spec ignores it."""
        if self.by in ("group", "fraction"):
            return None
        if record.split is None and self.by == "given":
            raise DataError(
                f"{record.where}: no split, but data.split=given needs train, valid or test in every record. Use "
                "data.split=fraction, or add the split."
            )
        if record.split not in (None, *SPLITS):
            raise DataError(f"{record.where}: split {record.split!r} is none of {', '.join(SPLITS)}.")
        return record.split

    @property
    def hashed_out(self) -> float:
        """Share of the places 0..1 that a hash holds out; training begins there."""
        return sum(share for _, share in self.shares)

    def by_hash(self, place: float) -> str:
        """The split of a record that the source did not hold out."""
        ends = accumulate(share for _, share in self.shares)
        return next((name for (name, _), end in zip(self.shares, ends, strict=True) if place < end), "train")


class Survey:
    """Collects in a first pass over all records how to split them."""

    def __init__(self, splitter: Splitter):
        self.splitter = splitter
        self.records = 0
        self._held_out_splits: set[str] = set()
        self._named = array("Q")  # digests of texts that the source holds out
        self._texts, self._places = array("Q"), array("d")  # digests of texts that a hash may hold out, and places
        self._pieces: list[tuple[float, int]] = []  # place and characters of each piece of a text
        self._before: tuple[float, int] | None = None  # of the record before, unless it is one of the pieces
        self._lowest, self._highest = 1.0, 0.0
        self._copies = False

    def see(self, record: Record) -> str:
        """The split of a record, as far as it is known in the first pass."""
        if record.repeated:
            return self.splitter.assign(record)
        self.records += 1
        held_out = self.splitter.source_split(record)
        if held_out in HELD_OUT:
            self._held_out_splits.add(held_out)
            self._named.append(digest(record.text))
            return held_out
        place = self.splitter.place(record)
        split = self.splitter.by_hash(place)
        self._lowest, self._highest = min(self._lowest, place), max(self._highest, place)
        self._copies |= record.group is not None
        if record.group is None:
            self._see_piece(record, place)
        if split != "train" or place == self._lowest:
            self._texts.append(digest(record.text))
            self._places.append(place)
        return split

    def _see_piece(self, record: Record, place: float) -> None:
        piece = place, len(record.text)
        if record.continues:
            self._pieces += [piece] if self._before is None else [self._before, piece]
        self._before = None if record.continues else piece

    def close(self) -> Splitter:
        """The splitter for the second pass: splits that the source names are not cut off again."""
        shares = tuple((name, share) for name, share in self.splitter.shares if name not in self._held_out_splits)
        hashed_by_text = not self._copies and not self._named  # so that copies are in the same split
        if self._pieces and hashed_by_text:
            shares = shares_by_size(shares, *map(np.array, zip(*self._pieces, strict=True)))
        elif len(shares) == 1 and self._lowest < self._highest:  # neither training nor the held-out split is empty
            name, share = shares[0]
            shares = ((name, min(max(share, math.nextafter(self._lowest, 1.0)), self._highest)),)
        settled = replace(self.splitter, shares=shares)
        if hashed_by_text:
            return settled
        texts = np.array(self._texts, dtype=np.uint64)[np.array(self._places) < settled.hashed_out]
        return replace(settled, held_out=np.unique(np.concatenate([texts, np.array(self._named, dtype=np.uint64)])))


def shares_by_size(
    shares: tuple[tuple[str, float], ...], places: NDArray[np.float64], sizes: NDArray[np.int64]
) -> tuple[tuple[str, float], ...]:
    """Shares of the places 0..1 in which each split finds its share of the characters, or `ENOUGH` of them if these are
    at most `MOST` of the text. Each later split, and training, keeps a piece, if there are so many."""
    places, firsts, copies = np.unique(places, return_index=True, return_counts=True)  # in rising order
    ends = np.cumsum(sizes[firsts] * copies)
    edge, taken, last, by_size = 0.0, 0.0, -1, list[tuple[str, float]]()
    for later, (name, share) in zip(range(len(shares), 0, -1), shares, strict=True):
        taken += max(share * ends[-1], min(ENOUGH, MOST * ends[-1]))
        last = max(last, min(int(np.searchsorted(ends, taken)), len(places) - 1 - later))
        taken = float(ends[last]) if last >= 0 else 0.0
        end = (places[last] + places[last + 1]) / 2 if last >= 0 else 0.0
        by_size.append((name, float(end) - edge))
        edge = float(end)
    return tuple(by_size)


def halves(records: Iterable[Record], share: float) -> Iterator[Record]:
    """A single document cut at a space: its beginning for training, its end for validation."""
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
    mean: float = 0.0
    """Mean of the numbers of training."""
    deviation: float = 1.0
    """Their standard deviation; 1 if they are all equal."""
    tags: tuple[str, ...] = ()
    """Word labels in order of their ids."""
    choices: int = 0
    """Largest number of answers of a record."""
    chat: bool = False
    """Records are conversations."""

    @property
    def form(self) -> str:
        """The form of a record in one word: chat, tags, choices, pair, labelled_pair, classes, numbers or text."""
        if self.chat:
            return "chat"
        if self.tags or self.choices:
            return "tags" if self.tags else "choices"
        if self.pair:
            return "labelled_pair" if self.classes or self.numbers else "pair"
        return "classes" if self.classes else "numbers" if self.numbers else "text"

    @property
    def plain(self) -> bool:
        """Whether records are single texts and nothing else, which can be cut anywhere."""
        return self.unlabelled and not self.pair

    @property
    def unlabelled(self) -> bool:
        """Whether records are texts or pairs of them and nothing else, which can share rows."""
        return not (self.classes or self.numbers or self.tags or self.choices or self.chat)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "Contents":
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in data.items()}
        return cls(**values)


class NumberLabels:
    """Labels that are numbers, with the place of their records, by which a hash splits them."""

    def __init__(self) -> None:
        self._numbers, self._places = array("d"), array("d")

    def see(self, number: float, place: float) -> None:
        if math.isfinite(number):
            self._numbers.append(number)
            self._places.append(place)

    def spread(self, from_place: float) -> tuple[float, float]:
        """Mean and standard deviation of the numbers from a place on; the deviation is 1 if all are equal."""
        numbers = np.array(self._numbers)[np.array(self._places) >= from_place]
        return (float(numbers.mean()), float(numbers.std()) or 1.0) if len(numbers) else (0.0, 1.0)


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
    values: NumberLabels = field(default_factory=NumberLabels)

    def see(self, record: Record, held_out: bool = False, place: float = 1.0) -> None:
        """The next record. held_out: whether the source holds it out; place: where a hash puts it, if it does not."""
        self.first = self.first or record
        first = _form(self.first)
        for name, here in _form(record).items():
            if here != first[name]:
                have, lack = (record, self.first) if here else (self.first, record)
                raise DataError(f"{lack.where}: no {name}, but {have.where} has one. All records must be of one form.")
        self.tags.update(record.tags)
        self.choices = max(self.choices, len(record.choices))
        label = record.label or ""
        if record.choices and not (label.isdecimal() and int(label) < len(record.choices)):
            choices = f"one of {len(record.choices)} choices"
            raise DataError(f"{record.where}: label {label!r} should be the index of {choices}.")
        if record.label is not None and not record.choices:
            self._see_label(record.label, record, held_out, place)

    def close(self, from_place: float = 0.0) -> Contents:
        """The contents; `from_place`: the place from which on a hash leaves records to training."""
        assert self.first is not None
        measured = self.numbers and not self.integers
        if not measured and len(self.labels) > MOST_CLASSES:
            raise DataError(f"more than {MOST_CLASSES} different labels, such as {next(iter(self.labels))!r}.")
        for label, (known, where) in self.labels.items():
            if not known and not self.numbers:
                raise DataError(f"{where}: label {label!r} never occurs in training. Move a few of its records there.")
        ordered = sorted(self.labels, key=float) if self.numbers else sorted(self.labels)
        numbers = bool(self.labels) and self.numbers
        for label, (_, where) in self.labels.items() if numbers else ():
            if not math.isfinite(float(label)):
                raise DataError(f"{where}: the number {label!r} is not finite. Correct it, or leave the record out.")
        mean, deviation = self.values.spread(from_place) if numbers else (0.0, 1.0)
        return Contents(
            pair=self.first.target is not None,
            classes=() if measured else tuple(ordered),
            numbers=numbers,
            mean=mean,
            deviation=deviation,
            tags=tuple(sorted(self.tags)),
            choices=self.choices,
            chat=bool(self.first.pieces),
        )

    @property
    def only_label(self) -> str | None:
        """The label, or the tag of each word, that all training records share; None without labels, or with several."""
        labels = self.tags or {label for label, (known, _) in self.labels.items() if known}
        return next(iter(labels)) if len(labels) == 1 else None

    def _see_label(self, label: str, record: Record, held_out: bool, place: float) -> None:
        if not label.strip():
            hint = "Fill it in, or leave such rows of a table out: data.source.unlabelled=''"
            raise DataError(f"{record.where}: the label is empty. {hint}")
        known, where = self.labels.get(label, (False, record.where))
        known = known or not held_out  # that a hash holds out all records of a class is no mistake in the data
        if label not in self.labels:
            try:
                integer = float(label).is_integer()
                self.integers = self.integers and integer
            except ValueError:
                self.numbers = self.integers = False
        if label in self.labels or len(self.labels) <= MOST_CLASSES:
            self.labels[label] = known, where
        if self.numbers and not held_out:
            self.values.see(float(label), place)


def _form(record: Record) -> dict[str, bool]:
    present = {"target": record.target is not None, "label": record.label is not None}
    lists = {"tags": record.tags, "choices": record.choices, "messages": record.pieces}
    return present | {name: bool(items) for name, items in lists.items()}


class SpreadSample(Generic[T]):
    """Items of a stream, spread from its beginning to its end, up to a total size and a number.

    The n-th item gets the mark n * golden ratio mod 1, which spreads evenly, and is in the sample while its mark is
    below a limit, which is halved whenever the sample is too large.
    """

    def __init__(self, size: Callable[[T], int], most_size: int, most_items: int = sys.maxsize, least: int = 1):
        self._size_of, self._most_size, self._most_items, self._least = size, most_size, most_items, least
        self._seen, self._size, self._limit = 0, 0, 1 << 64
        self._marked: list[tuple[int, T]] = []

    def see(self, item: T) -> None:
        """The next item of the stream."""
        mark = self._seen * 0x9E3779B97F4A7C15 % (1 << 64)
        self._seen += 1
        if mark >= self._limit:
            return
        self._marked.append((mark, item))
        self._size += self._size_of(item)
        while self._is_too_large():
            self._limit //= 2
            self._marked = [pair for pair in self._marked if pair[0] < self._limit] or self._marked[:1]
            self._size = sum(self._size_of(item) for _, item in self._marked)

    def _is_too_large(self) -> bool:
        items = len(self._marked)
        return items > self._least and (self._size > self._most_size or items > self._most_items)

    def __iter__(self) -> Iterator[T]:
        return (item for _, item in self._marked)


def utf8_bytes(text: str) -> int:
    """Number of bytes of a text in UTF-8."""
    return len(text.encode("utf-8", "surrogatepass"))
