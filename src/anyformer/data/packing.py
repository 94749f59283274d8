"""Packing: several documents, or pairs of them, share a row, told apart by their segments.

Best fit decreasing: the longest document first, each into the row that it fills best. Johnson et al., "Worst-case
performance bounds for simple one-dimensional packing algorithms", 1974. A pair goes where both of its sides have room.
Done inside windows of the sample order, so a row depends on (seed, epoch, window) alone.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from anyformer.data.order import Integers, Order
from anyformer.data.sheet import Plan, Sheet

WINDOW = 2048


def best_fit(lengths: Integers, capacity: int) -> Integers:
    """The row of each document, in the order in which they come. None may be longer than `capacity`."""
    rows = np.zeros_like(lengths)
    gaps: list[int] = []  # room left, ascending, and the row that has it
    owners: list[int] = []
    opened = 0
    for place, length in enumerate(lengths.tolist()):
        found = bisect_left(gaps, length)
        if found < len(gaps):
            gap, row = gaps.pop(found), owners.pop(found)
        else:
            gap, row, opened = capacity, opened, opened + 1
        rows[place] = row
        if gap > length:
            found = bisect_left(gaps, gap - length)
            gaps.insert(found, gap - length)
            owners.insert(found, row)
    return rows


def best_fit_pairs(lengths: Integers, capacity: int) -> Integers:
    """The same of pairs, [side, pair], with as much room on each side: where it fits, the row with least left."""
    pairs, opened = lengths.shape[1], 0
    rows, left = np.zeros(pairs, dtype=np.int64), np.full(pairs, 2 * capacity)
    first, second = np.full((2, pairs), capacity)
    for place, (one, other) in enumerate(lengths.T.tolist()):
        able = np.flatnonzero((first[:opened] >= one) & (second[:opened] >= other))
        if len(able):
            row = able[left[able].argmin()]
        else:
            row, opened = opened, opened + 1
        rows[place] = row
        first[row], second[row], left[row] = first[row] - one, second[row] - other, left[row] - one - other
    return rows


@dataclass(frozen=True, eq=False)
class Packer:
    """Plans rows of `capacity` tokens on each side."""

    order: Order
    lengths: Callable[[Integers], Integers]
    """Tokens of some samples, [side, sample]."""
    capacity: int
    rows: int
    """Of a batch."""

    @property
    def units(self) -> int:
        """Units of a batch."""
        return self.rows

    def plan(self, epoch: int, window: int) -> Plan:
        """The rows of a window, in an order that does not show how they were packed."""
        samples = self.order.samples_of(epoch, window)
        lengths = self.lengths(samples)
        falling = np.argsort(-lengths.sum(0), kind="stable")
        samples, lengths = samples[falling], lengths[:, falling]
        rows = best_fit(lengths[0], self.capacity) if len(lengths) == 1 else best_fit_pairs(lengths, self.capacity)
        height = int(rows.max(initial=-1)) + 1
        rows = self.order.arrange(height, epoch, window)[rows]
        sorting = np.argsort(rows, kind="stable")
        return Plan(Sheet(samples[sorting], rows[sorting], height), np.arange(height + 1))
