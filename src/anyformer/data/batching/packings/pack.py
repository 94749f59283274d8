"""Pack: several documents, or pairs of them, share a row, separated by their segments.

Best fit decreasing: the longest document first, each into the row that it fills best. Johnson et al., "Worst-case
performance bounds for simple one-dimensional packing algorithms", 1974. A pair counts as long as its longer side, a row
as full as its fuller one: comparing both sides of every row takes longer, and opens hardly fewer rows.
Done inside windows of the sample order, so that a row depends on (seed, epoch, window) alone.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from operator import lt, sub
from typing import Any

import numpy as np

from anyformer.data.batching.packings.packing import Arrays, Collator, PackingSpec, PackingTask
from anyformer.data.batching.row_plan import (
    CUTS,
    BatchPlan,
    Integers,
    Lengths,
    LoaderPosition,
    Numbers,
    Order,
    RowPlan,
    Side,
    mix,
    scramble,
    windowed,
)

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
    """Documents or pairs share rows of `context` tokens, and each sees itself alone. Documents that are longer are cut,
    at other places in every epoch."""

    reads_pairs = True
    keeps_whole = True
    one_shape = True
    marks_documents = True

    def batches(self, task: PackingTask, start: LoaderPosition) -> Iterator[tuple[Any, LoaderPosition]]:
        if len(task.texts) > 1:
            order = Order(len(task.samples), task.seed, WINDOW, task.shuffle)
            plan = partial(pack_window, order, task.lengths, task.context)
            yield from windowed(order, plan, task.rows, task.even, start)
            return
        key = mix(task.seed, start.epoch, CUTS) if task.shuffle else None
        pieces = Pieces.of(task.samples.sides["tokens"], task.context, key)
        order = Order(len(pieces), task.seed, WINDOW, task.shuffle)
        plan = partial(pack_window, order, lambda samples: pieces.lengths(samples)[None], task.context)
        for rows, position in windowed(order, plan, task.rows, task.even, start):
            yield (pieces.take(rows.samples), replace(rows, samples=np.arange(len(rows.samples)))), position

    def collate(self, task: PackingTask, plan: Any) -> Arrays:
        samples = task.samples
        if not isinstance(plan, RowPlan):
            pieces, plan = plan
            samples = replace(samples, sides={"tokens": pieces})
        return Collator(samples, task.words.pad, task.context, task.word_starts).arrays(plan)


@dataclass(frozen=True, eq=False)
class Pieces:
    """Pieces of documents, read like the samples of a side; every token belongs to one piece."""

    tokens: Numbers
    begins: Integers
    sizes: Integers

    @classmethod
    def of(cls, side: Side, width: int, key: int | None) -> "Pieces":
        """Documents in pieces of `width` tokens at most. One that fits stays whole; of a longer one `key` decides the
        size of the first piece. None: `width`."""
        documents = np.arange(len(side))
        starts, lengths = side.starts(documents), side.lengths(documents)
        first = np.full(len(side), width)
        if key is not None:
            long = np.flatnonzero(lengths > width)
            random = scramble(long.astype(np.uint64) ^ np.uint64(key))
            first[long] = 1 + (random % np.uint64(width)).astype(np.int64)
        counts = 1 + np.maximum(0, -((first - lengths) // width))  # pieces of each document
        # of each piece in its document
        number = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        offsets = np.where(number > 0, np.repeat(first - width, counts) + number * width, 0)
        ends = np.minimum(np.repeat(first, counts) + number * width, np.repeat(lengths, counts))
        return cls(side.tokens, np.repeat(starts, counts) + offsets, ends - offsets)

    def __len__(self) -> int:
        return len(self.begins)

    def take(self, samples: Integers) -> "Pieces":
        """Some of the pieces, in the given order."""
        return replace(self, begins=self.begins[samples], sizes=self.sizes[samples])

    def starts(self, samples: Integers) -> Integers:
        """Index of the first token of each piece among all tokens."""
        return self.begins[samples]

    def lengths(self, samples: Integers) -> Integers:
        """Number of tokens of each piece."""
        return self.sizes[samples]
