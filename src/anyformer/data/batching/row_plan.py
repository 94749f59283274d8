"""Where samples lie on the rows of a batch: what packing and buckets plan, and what collating follows."""

from dataclasses import dataclass, replace

import numpy as np

from anyformer.data.batching.order import Integers


@dataclass(frozen=True, eq=False)
class RowPlan:
    """Samples with their rows, sorted by row; those of a row stand one behind the other. Knows no token."""

    samples: Integers
    rows: Integers
    height: int
    """Rows."""

    @classmethod
    def blank(cls) -> "RowPlan":
        """Without rows."""
        nothing = np.zeros(0, dtype=np.int64)
        return cls(nothing, nothing, 0)

    @classmethod
    def one_each(cls, samples: Integers) -> "RowPlan":
        """A row for each sample."""
        return cls(samples, np.arange(len(samples)), len(samples))

    @property
    def numbers(self) -> Integers:
        """Of each sample in its row: 0, 1, 2, ..."""
        return np.arange(len(self.rows)) - self._first

    def columns(self, lengths: Integers) -> Integers:
        """Where each sample begins in its row, on a side on which they are so long."""
        before: Integers = np.cumsum(lengths) - lengths
        return before - before[self._first]

    @property
    def _first(self) -> Integers:
        """The first sample in the row of each."""
        return np.searchsorted(self.rows, self.rows)

    def cut(self, first: int, last: int) -> "RowPlan":
        """Rows `first` up to but not including `last`."""
        start, stop = np.searchsorted(self.rows, (first, last))
        return RowPlan(self.samples[start:stop], self.rows[start:stop] - first, last - first)

    def filled_up(self, height: int) -> "RowPlan":
        """With empty rows below."""
        return replace(self, height=height)

    def above(self, other: "RowPlan") -> "RowPlan":
        """This sheet with another one below it."""
        return RowPlan(
            np.concatenate([self.samples, other.samples]),
            np.concatenate([self.rows, other.rows + self.height]),
            self.height + other.height,
        )

    def share(self, rank: int, world: int) -> "RowPlan":
        """Every `world`-th row: the shares of all ranks together are the sheet. A share may have no row."""
        mine = self.rows % world == rank
        height = len(range(rank, self.height, world))
        return RowPlan(self.samples[mine], self.rows[mine] // world, height)


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """All batches of a window: a sheet, and the rows at which it may be cut."""

    sheet: RowPlan
    edges: Integers
    """First row of each unit, and the end: a unit is one packed row, or one whole bucket batch."""

    @property
    def units(self) -> int:
        return len(self.edges) - 1

    def take(self, first: int, last: int) -> RowPlan:
        """The rows of some units."""
        return self.sheet.cut(int(self.edges[first]), int(self.edges[last]))
