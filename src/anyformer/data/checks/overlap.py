"""Held-out text that is in the training split, too: the score then measures memorisation.

Whole texts, lines, and stretches of letters are compared, without case, digits, spaces and punctuation. Training is
hashed at every 48th letter and held-out text at every letter, so that a common stretch of 95 letters is always found
(rolling hash: Karp, Rabin 1987). Time is linear in the text, and memory is bounded. Copies of whole texts are not
reported: training leaves them out.
"""

import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from anyformer.core import Chance, Count
from anyformer.core.readable_numbers import part
from anyformer.data.checks.check import Check, Examination, Facts
from anyformer.data.preparation.contents import digest
from anyformer.data.record import Record

STRETCH, CHUNK = 48, 48 << 10
"""Letters of a stretch; letters that are hashed together."""
KINDS = ("copies", "texts", "lines", "stretches")
BASE = 0x9E3779B97F4A7C15
_NO_LETTER = re.compile(r"[^\w\n]|[\d_]")
_DELETED = bytes(code for code in range(128) if not chr(code).isalpha() and chr(code) != "\n")
_LOWER = bytes(range(256)).lower()
Marks = NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True)
class Overlap(Check, kind="overlap"):
    """Held-out texts, lines or long stretches that occur in training but for case, digits, spaces and punctuation."""

    letters: Count = 20
    """Shortest text, in letters, that is compared: shorter ones are equal by chance."""
    line: Count = 40
    """Shortest line, in letters, that is compared."""
    most: Chance = 0.02
    """Share of lines, or of letters in stretches, that is not reported: phrases and headings come again."""
    marks: Count = 500_000
    """Largest number of texts, of lines, and of stretches that are remembered of training and of held-out text: of
    larger data the first 24 million letters of training are compared."""

    def examine(self, facts: Facts) -> Examination:
        search = OverlapSearch(self)
        while item := (yield):
            search.see(item.record, item.split)
        return [self.finding(text, places) for text, places in search.warnings()]


class OverlapSearch:
    """Compares the held-out records with those of training, with the limits of a check."""

    def __init__(self, check: Overlap) -> None:
        self._check, self._stretch_hash = check, StretchHash()
        self._train, self._held_out = Hashes(check.marks), Hashes(check.marks)

    def see(self, record: Record, split: str) -> None:
        """The next record."""
        lines = _letters(record.text).split(b"\n")
        letters = b"".join(lines)
        training = split == "train"
        side = self._train if training else self._held_out
        if len(letters) < self._check.letters or len(side.where) >= self._check.marks:
            return
        side.start("" if training else record.where)
        side.add("copies", digest(record.text).to_bytes(8, "little"))
        side.add("texts", _digest(letters))
        if len(lines) > 1:
            side.add("lines", b"".join(_digest(line) for line in lines if len(line) >= self._check.line))
        for start in range(0, len(letters), CHUNK) if len(letters) >= 2 * STRETCH else ():
            chunk = letters[start : start + CHUNK]
            side.add("stretches", self._stretch_hash.of_row(chunk) if training else self._stretch_hash.rolling(chunk))

    def warnings(self) -> Iterator[tuple[str, Iterator[str]]]:
        """After the last record: what of the held-out text is in training, if any, and the records that have it."""
        parts, places = self.shared()
        if parts:
            text = "held-out text stands in training, too, but for case, digits, spaces and punctuation"
            yield f"{text}: {', '.join(parts)}. Take it out of one of the two.", iter(places)

    def shared(self) -> tuple[list[str], list[str]]:
        """The shares of held-out texts, lines and letters that are in training, where they exceed the limits, and the
        places of the records that have them."""
        train, held_out, most = self._train, self._held_out, self._check.most
        parts, records = list[str](), set[int]()
        left_out = _among(train.marks("copies"), held_out.marks("copies"))
        for kind, limit in (("texts", 0.0), ("lines", most), ("stretches", most)):
            hits = _among(held_out.marks(kind), train.marks(kind, ~left_out))
            if kind == "stretches" and hits.any():  # each hit covers all letters of its stretch
                edges = np.append(hits.astype(np.int32), np.zeros(STRETCH, dtype=np.int32))
                edges[STRETCH:] -= hits
                hits = edges.cumsum(dtype=np.int32)[:-STRETCH] > 0
            if hits.sum() > limit * len(hits):
                units = {
                    "lines": f"lines of {self._check.line} or more letters",
                    "stretches": f"letters in stretches of {STRETCH} or more",
                }
                parts.append(part(int(hits.sum()), len(hits), units.get(kind, kind)))
                records.update(held_out.records(kind)[hits].tolist())
        return parts, [held_out.where[number] for number in sorted(records)]


@dataclass
class Hashes:
    """Hashes of the texts, lines and stretches of a split, and the record that each belongs to."""

    most: int
    where: list[str] = field(default_factory=list)
    _marks: dict[str, "array[int]"] = field(default_factory=lambda: {kind: array("Q") for kind in KINDS})
    _starts: dict[str, "array[int]"] = field(default_factory=lambda: {kind: array("q") for kind in KINDS})

    def start(self, where: str) -> None:
        """Begins the next record."""
        self.where.append(where)
        for kind, starts in self._starts.items():
            starts.append(len(self._marks[kind]))

    def add(self, kind: str, digests: bytes) -> None:
        """Adds hashes of 8 bytes each to the record, unless there are too many already."""
        if len(self._marks[kind]) < self.most:
            self._marks[kind].frombytes(digests)

    def marks(self, kind: str, chosen: NDArray[np.bool_] | None = None) -> Marks:
        """The hashes of all records, or of the chosen ones."""
        marks: Marks = np.frombuffer(self._marks[kind], dtype=np.uint64)
        return marks if chosen is None or chosen.all() else marks[chosen[self.records(kind)]]

    def records(self, kind: str) -> NDArray[np.int32]:
        """The number of the record of each hash."""
        ends = np.append(np.frombuffer(self._starts[kind], dtype=np.int64), len(self._marks[kind]))
        sizes = ends[1:] - ends[:-1]
        return np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)


def _among(marks: Marks, known: Marks) -> NDArray[np.bool_]:
    """Whether each hash is among some others; 0 stands for none. In blocks, since np.isin would sort copies of all."""
    known, hits = np.sort(known), np.zeros(len(marks), dtype=np.bool_)
    for start in range(0, len(marks) if len(known) else 0, CHUNK):
        part_of = marks[start : start + CHUNK]
        places = np.searchsorted(known, part_of).clip(max=len(known) - 1)
        hits[start : start + CHUNK] = (known[places] == part_of) & (part_of != 0)
    return hits


class StretchHash:
    """The hash of a stretch x of letters, modulo 2^64: sum_j T[x_j] B^j."""

    def __init__(self) -> None:
        self._values = np.random.default_rng(0).integers(1, 1 << 63, 256, dtype=np.uint64)
        self._powers, self._inverses = (
            np.cumprod(np.append(np.uint64(1), np.full(CHUNK, base, dtype=np.uint64)))
            for base in (BASE, pow(BASE, -1, 1 << 64))
        )

    def of_row(self, letters: bytes) -> bytes:
        """The hashes of stretches side by side, of 8 bytes each; the rest is left out."""
        rows = np.frombuffer(letters, dtype=np.uint8, count=len(letters) // STRETCH * STRETCH).reshape(-1, STRETCH)
        marks: Marks = (self._values[rows] * self._powers[:STRETCH]).sum(1)
        return marks.tobytes()

    def rolling(self, letters: bytes) -> bytes:
        """The hash of the stretch at each letter, from differences of one running sum; 0 where too few letters
        follow."""
        marks = np.zeros(len(letters), dtype=np.uint64)
        if (count := len(letters) - STRETCH + 1) > 0:
            terms = self._values[np.frombuffer(letters, dtype=np.uint8)] * self._powers[: len(letters)]
            sums = np.append(np.uint64(0), terms.cumsum())
            marks[:count] = (sums[STRETCH:] - sums[:-STRETCH]) * self._inverses[:count]
        return marks.tobytes()


def _letters(text: str) -> bytes:
    """The letters of a text in lower case, and its line ends."""
    if text.isascii():
        return text.encode().translate(_LOWER, _DELETED)
    return _NO_LETTER.sub("", text).lower().encode("utf-8", "surrogatepass")


def _digest(letters: bytes) -> bytes:
    return blake2b(letters, digest_size=8).digest()
