"""Pack: several documents, or pairs of them, share a row, separated by their segments.

Best fit decreasing: the longest document first, each into the row that it fills best. Johnson et al., "Worst-case
performance bounds for simple one-dimensional packing algorithms", 1974. A pair counts as long as its longer side, a row
as full as its fuller one: comparing both sides of every row takes longer, and opens hardly fewer rows.
Done inside windows of the sample order, so that a row depends on (seed, epoch, window) alone.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from operator import lt, sub

import numpy as np

from anyformer.data.batching.collate import Arrays, Collator
from anyformer.data.batching.packings.packing import PackingSpec, PackingTask
from anyformer.data.batching.row_plan import BatchPlan, Integers, Lengths, LoaderPosition, Order, RowPlan, windowed

WINDOW = 2048


def best_fit(lengths: Integers, capacity: int) -> Integers:
    """The row of each sample, [side, sample], taken in the given order. None may be longer than `capacity`."""
    count = lengths.shape[1]
    rows = np.zeros(count, dtype=np.int64)
    rooms: list[list[int]] = []  # free tokens of each row on each side
    ranked: list[int] = []  # the smaller of them and the row, as one number: room * count + row; ascending
    for sample, sides in enumerate(lengths.T.tolist()):
        rank = _fitting(ranked, rooms, sides, count)
        if rank is None:
            row = len(rooms)
            rooms.append([capacity] * len(sides))
        else:
            row = ranked.pop(rank) % count
        rows[sample] = row
        rooms[row] = [*map(sub, rooms[row], sides)]
        insort(ranked, min(rooms[row]) * count + row)
    return rows


def _fitting(ranked: list[int], rooms: list[list[int]], sides: list[int], count: int) -> int | None:
    """Rank of the fullest row that has room on its fuller side; else of the first that has room on both sides."""
    sure = bisect_left(ranked, max(sides) * count)
    if sure < len(ranked):
        return sure
    candidates = range(bisect_left(ranked, min(sides) * count), sure)
    return next((rank for rank in candidates if not any(map(lt, rooms[ranked[rank] % count], sides))), None)


def pack_window(order: Order, lengths_of: Lengths, capacity: int, epoch: int, window: int) -> BatchPlan:
    """The rows of a window, of `capacity` tokens on each side, in a random order that hides how they were packed."""
    samples = order.samples_of(epoch, window)
    lengths = lengths_of(samples)
    falling = np.argsort(-lengths.max(0), kind="stable")
    samples = samples[falling]
    rows = best_fit(lengths[:, falling], capacity)
    height = int(rows.max(initial=-1)) + 1
    rows = order.arrange(height, epoch, window)[rows]
    sorting = np.argsort(rows, kind="stable")
    return BatchPlan(RowPlan(samples[sorting], rows[sorting], height), np.arange(height + 1))


@dataclass(frozen=True, kw_only=True)
class Pack(PackingSpec, kind="pack"):
    """Documents or pairs share rows of `context` tokens, and each sees itself alone."""

    reads_pairs = True
    one_shape = True
    marks_documents = True

    def batches(self, task: PackingTask, start: LoaderPosition) -> Iterator[tuple[RowPlan, LoaderPosition]]:
        order = Order(len(task.samples), task.seed, WINDOW, task.shuffle)
        plan = partial(pack_window, order, task.lengths, task.context)
        return windowed(order, plan, task.rows, task.even, start)

    def collate(self, task: PackingTask, plan: RowPlan) -> Arrays:
        return Collator(task.samples, task.words.pad, task.context, task.word_starts).arrays(plan)
