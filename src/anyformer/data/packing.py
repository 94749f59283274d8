"""Packing: several documents share a row, told apart by their segments.

Best fit decreasing: the longest document first, each into the row that it fills best. Johnson et al., "Worst-case
performance bounds for simple one-dimensional packing algorithms", 1974. Done inside windows of the sample order, so a
row depends on (seed, epoch, window) alone.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from anyformer.data.order import Integers, Order
from anyformer.data.sheet import Plan, Sheet

WINDOW = 2048


def best_fit(lengths: Integers, capacity: int) -> tuple[Integers, Integers]:
    """Row and first column of each document. None may be longer than `capacity`."""
    rows, columns = np.zeros_like(lengths), np.zeros_like(lengths)
    gaps: list[int] = []  # room left, ascending, and the row that has it
    owners: list[int] = []
    opened = 0
    for place in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[place])
        found = bisect_left(gaps, length)
        if found < len(gaps):
            gap, row = gaps.pop(found), owners.pop(found)
        else:
            gap, row, opened = capacity, opened, opened + 1
        rows[place], columns[place] = row, capacity - gap
        if gap > length:
            found = bisect_left(gaps, gap - length)
            gaps.insert(found, gap - length)
            owners.insert(found, row)
    return rows, columns


@dataclass(frozen=True, eq=False)
class Packer:
    """Plans rows of `capacity` tokens."""

    order: Order
    lengths: Callable[[Integers], Integers]
    """Tokens of some samples."""
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
        rows, columns = best_fit(self.lengths(samples), self.capacity)
        height = int(rows.max(initial=-1)) + 1
        rows = self.order.arrange(height, epoch, window)[rows]
        sorting = np.lexsort((columns, rows))
        return Plan(Sheet(samples[sorting], rows[sorting], columns[sorting], height), np.arange(height + 1))
