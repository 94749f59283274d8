"""The samples of a split, their order, and plans of batches: which samples stand in which row; no token is read yet."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]
Lengths: TypeAlias = Callable[[Integers], Integers]
"""Number of tokens of some samples, [side, sample]."""
ROUNDS = 6
CUTS = 2
"""Sets the random numbers of cuts apart from those of the order."""


@dataclass(frozen=True)
class NumberFile:
    """A file of numbers, mapped when it is first read; a copy in another process maps it anew."""

    path: Path
    dtype: str
    count: int

    @cached_property
    def array(self) -> NDArray[Any]:
        dtype = np.dtype(self.dtype).newbyteorder("<")
        return np.memmap(self.path, dtype, "r", shape=(self.count,)) if self.count else np.zeros(0, dtype)

    def at(self, places: Integers) -> NDArray[Any]:
        """The numbers at some places, copied into memory."""
        return np.array(self.array[places])

    def __reduce__(self) -> tuple[Any, ...]:
        return NumberFile, (self.path, self.dtype, self.count)


@dataclass(frozen=True, eq=False)
class NumberArray:
    """Numbers in memory, read like those of a file."""

    array: NDArray[Any]

    @property
    def count(self) -> int:
        return len(self.array)

    def at(self, places: Integers) -> NDArray[Any]:
        """The numbers at some places."""
        return self.array[places]


Numbers: TypeAlias = NumberFile | NumberArray


@dataclass(frozen=True)
class Side:
    """Sequences of ids, one for each sample."""

    tokens: Numbers
    index: Numbers

    def __len__(self) -> int:
        return self.index.count - 1

    def __getitem__(self, sample: int) -> Integers:
        start, stop = self.index.array[sample : sample + 2]
        return self.tokens.array[start:stop].astype(np.int64)

    def starts(self, samples: Integers) -> Integers:
        """Index of the first token of each sample among all tokens."""
        return self.index.at(samples)

    def lengths(self, samples: Integers) -> Integers:
        """Number of tokens of each sample."""
        lengths: Integers = self.index.at(samples + 1) - self.index.at(samples)
        return lengths


@dataclass(frozen=True)
class Split:
    """The samples of one split."""

    sides: Mapping[str, Side]
    """tokens, and of pairs source; choices holds several sequences for each sample."""
    numbers: Mapping[str, Numbers]
    """label, number, cut, source_cut: one for each sample; tags: one for each token."""

    def __len__(self) -> int:
        return len(self.sides["tokens"])

    def values(self, name: str, samples: Integers) -> NDArray[Any] | None:
        """One number for each of some samples, by name; None if the data have none of this name."""
        return self.numbers[name].at(samples) if name in self.numbers else None


class LoaderPosition(NamedTuple):
    """A position in the data. With the seed it determines all batches that follow; state.json stores it."""

    epoch: int = 0
    window: int = 0
    """Window of the epoch; 0 for a packing that plans the whole epoch at once."""
    unit: int = 0
    """Unit of the window: a row, a bucket batch, or a batch of a stream."""

    def at_unit(self, unit: int, units: int) -> "LoaderPosition":
        """The position at a unit of an epoch that has `units` of them in one window; from the last one on, the
        beginning of the next epoch."""
        return LoaderPosition(self.epoch, 0, unit) if unit < units else LoaderPosition(self.epoch + 1)


def mix(*numbers: int) -> int:
    """A 64-bit key out of several numbers (splitmix64's finaliser); small changes give an unrelated key."""
    state = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        for number in numbers:
            state = scramble(state ^ np.uint64(number & 0xFFFFFFFFFFFFFFFF))
    return int(state)


def permute(places: Integers, size: int, key: int) -> Integers:
    """Where each of 0..size-1 goes: different places, different results."""
    half = np.uint64(max(1, (max(size - 1, 1).bit_length() + 1) // 2))
    keys = [np.uint64(mix(key, turn)) for turn in range(ROUNDS)]
    permuted = _feistel(places.astype(np.uint64), half, keys)
    outside = np.flatnonzero(permuted >= size)
    while outside.size:
        permuted[outside] = _feistel(permuted[outside], half, keys)
        outside = outside[permuted[outside] >= size]
    return permuted.astype(np.int64)


def _feistel(numbers: NDArray[np.uint64], half: np.uint64, keys: list[np.uint64]) -> NDArray[np.uint64]:
    low = np.uint64((1 << int(half)) - 1)
    left, right = numbers >> half, numbers & low
    for key in keys:
        left, right = right, left ^ (scramble(right ^ key) & low)
    return (left << half) | right


def scramble(x: Any) -> Any:
    """splitmix64's finaliser: a bijection of 64-bit numbers."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@dataclass(frozen=True)
class Order:
    """The samples of all epochs, cut into windows inside which batches are planned."""

    samples: int
    seed: int
    window: int
    """Samples of a window; the last one of an epoch has what is left."""
    shuffle: bool = True
    """False: as they are stored, in every epoch."""

    @property
    def windows(self) -> int:
        """Windows of an epoch."""
        return -(-self.samples // self.window)

    def samples_of(self, epoch: int, window: int) -> Integers:
        """The samples of a window, in order."""
        places = np.arange(window * self.window, min((window + 1) * self.window, self.samples), dtype=np.int64)
        return permute(places, self.samples, mix(self.seed, epoch)) if self.shuffle else places

    def arrange(self, items: int, epoch: int, window: int) -> Integers:
        """A random order of the rows or batches of a window."""
        places = np.arange(items, dtype=np.int64)
        return permute(places, items, mix(self.seed, epoch, window, 1)) if self.shuffle else places


@dataclass(frozen=True, eq=False)
class RowPlan:
    """Samples and their rows, sorted by row; the samples of a row stand one behind the other."""

    samples: Integers
    rows: Integers
    height: int
    """Number of rows."""

    @classmethod
    def one_each(cls, samples: Integers) -> "RowPlan":
        """A row for each sample."""
        return cls(samples, np.arange(len(samples)), len(samples))

    @property
    def numbers(self) -> Integers:
        """Index of each sample in its row: 0, 1, 2, ..."""
        return np.arange(len(self.rows)) - self._first

    def columns(self, lengths: Integers) -> Integers:
        """Column at which each sample begins in its row, on the side that has these lengths."""
        before: Integers = np.cumsum(lengths) - lengths
        return before - before[self._first]

    @property
    def _first(self) -> Integers:
        """Index of the first sample in the row of each sample."""
        return np.searchsorted(self.rows, self.rows)

    def above(self, other: "RowPlan") -> "RowPlan":
        """This plan with another one below it."""
        return RowPlan(
            np.concatenate([self.samples, other.samples]),
            np.concatenate([self.rows, other.rows + self.height]),
            self.height + other.height,
        )


def few_sizes(size: int) -> int:
    """The next of the sizes 8, 12, 16, 24, 32, 48, ...: rounded up to them, batches have few shapes."""
    power = max(8, 1 << max(0, size - 1).bit_length())
    return power * 3 // 4 if size <= power * 3 // 4 and power > 8 else power


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """All batches of a window: their rows, and where these may be cut."""

    rows: RowPlan
    edges: Integers
    """First row of each unit, and the end. A unit is one packed row, or one bucket batch."""

    @property
    def units(self) -> int:
        """Number of units."""
        return len(self.edges) - 1

    def take(self, first: int, last: int) -> RowPlan:
        """The rows of the units from `first` up to but not including `last`."""
        top, bottom = int(self.edges[first]), int(self.edges[last])
        start, stop = np.searchsorted(self.rows.rows, (top, bottom))
        return RowPlan(self.rows.samples[start:stop], self.rows.rows[start:stop] - top, bottom - top)


@dataclass(frozen=True, eq=False)
class TokenRows:
    """Rows that are cut out of all tokens of a split, whatever document these belong to."""

    starts: Integers
    """First token of each row."""
    lengths: Integers
    """Tokens of each row that count."""


def windowed(
    order: Order, plan: Callable[[int, int], BatchPlan], units: int, even: bool, start: LoaderPosition
) -> Iterator[tuple[RowPlan, LoaderPosition]]:
    """The batches of an epoch from a position on, each with the position after it. `plan` gives the rows of a window of
    an epoch, `units` is the number of units of a batch; `even` fills the last batch up with empty rows, unless it is
    the only one."""
    no_rows = RowPlan.one_each(np.zeros(0, dtype=np.int64))
    epoch, rows, missing = start.epoch, no_rows, units
    only = start == LoaderPosition(epoch)
    for window in range(start.window, order.windows):
        planned = plan(epoch, window)
        following = LoaderPosition(epoch + 1) if window + 1 == order.windows else LoaderPosition(epoch, window + 1)
        unit = start.unit if window == start.window else 0
        while unit < planned.units:
            last = min(unit + missing, planned.units)
            rows, missing, unit = rows.above(planned.take(unit, last)), missing - (last - unit), last
            if not missing:
                yield rows, LoaderPosition(epoch, window, unit) if unit < planned.units else following
                rows, missing, only = no_rows, units, False
    if rows.height:
        yield replace(rows, height=units) if even and not only else rows, LoaderPosition(epoch + 1)
