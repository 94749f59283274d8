"""Plans of batches: which samples stand in which row, before any token is read."""

from dataclasses import dataclass, replace

import numpy as np

from anyformer.data.batching.order import Integers


@dataclass(frozen=True, eq=False)
class RowPlan:
    """Samples and their rows, sorted by row; the samples of a row stand one behind the other."""

    samples: Integers
    rows: Integers
    height: int
    """Number of rows."""

    @classmethod
    def blank(cls) -> "RowPlan":
        """A plan without rows."""
        none = np.zeros(0, dtype=np.int64)
        return cls(none, none, 0)

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

    def cut(self, first: int, last: int) -> "RowPlan":
        """Rows `first` up to but not including `last`."""
        start, stop = np.searchsorted(self.rows, (first, last))
        return RowPlan(self.samples[start:stop], self.rows[start:stop] - first, last - first)

    def filled_up(self, height: int) -> "RowPlan":
        """The plan with empty rows below."""
        return replace(self, height=height)

    def above(self, other: "RowPlan") -> "RowPlan":
        """This plan with another one below it."""
        return RowPlan(
            np.concatenate([self.samples, other.samples]),
            np.concatenate([self.rows, other.rows + self.height]),
            self.height + other.height,
        )


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
        """The rows of some units."""
        return self.rows.cut(int(self.edges[first]), int(self.edges[last]))


@dataclass(frozen=True, eq=False)
class TokenRows:
    """Rows that are cut out of all tokens of a split, whatever document these belong to."""

    starts: Integers
    """First token of each row."""
    lengths: Integers
    """Tokens of each row that count."""
