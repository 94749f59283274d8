"""Packing: several documents, or pairs of them, share a row, told apart by their segments.

Best fit decreasing: the longest document first, each into the row that it fills best. Johnson et al., "Worst-case
performance bounds for simple one-dimensional packing algorithms", 1974. A pair counts as long as its longer side, a row
as full as its fuller one: to look at both sides of every row takes longer, and opens hardly fewer.
Done inside windows of the sample order, so a row depends on (seed, epoch, window) alone.
"""

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass
from operator import lt, sub

import numpy as np

from anyformer.data.batching.order import Integers, Order
from anyformer.data.batching.row_plan import BatchPlan, RowPlan

WINDOW = 2048


def best_fit(lengths: Integers, capacity: int) -> Integers:
    """The row of each sample, [side, sample], in the order in which they come. None may be longer than `capacity`."""
    count = lengths.shape[1]
    rows = np.zeros(count, dtype=np.int64)
    rooms: list[list[int]] = []  # of a row, left on each side
    ranked: list[int] = []  # the least of them and the row, as one number: room * count + row; ascending
    for place, sides in enumerate(lengths.T.tolist()):
        found = _fitting(ranked, rooms, sides, count)
        if found is None:
            row = len(rooms)
            rooms.append([capacity] * len(sides))
        else:
            row = ranked.pop(found) % count
        rows[place] = row
        rooms[row] = [*map(sub, rooms[row], sides)]
        insort(ranked, min(rooms[row]) * count + row)
    return rows


def _fitting(ranked: list[int], rooms: list[list[int]], sides: list[int], count: int) -> int | None:
    """Where in the ranking the fullest row stands that is sure to have room; else the first that has it."""
    sure = bisect_left(ranked, max(sides) * count)
    if sure < len(ranked):
        return sure
    perhaps = range(bisect_left(ranked, min(sides) * count), sure)
    return next((found for found in perhaps if not any(map(lt, rooms[ranked[found] % count], sides))), None)


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

    def plan(self, epoch: int, window: int) -> BatchPlan:
        """The rows of a window, in an order that does not show how they were packed."""
        samples = self.order.samples_of(epoch, window)
        lengths = self.lengths(samples)
        falling = np.argsort(-lengths.max(0), kind="stable")
        samples = samples[falling]
        rows = best_fit(lengths[:, falling], self.capacity)
        height = int(rows.max(initial=-1)) + 1
        rows = self.order.arrange(height, epoch, window)[rows]
        sorting = np.argsort(rows, kind="stable")
        return BatchPlan(RowPlan(samples[sorting], rows[sorting], height), np.arange(height + 1))
