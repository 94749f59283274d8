"""Batches in an order that nothing but the seed decides.

Batch after batch is a pure function of (seed, position): workers, ranks and micro-batches change who builds a row,
never which row it is. The main process plans, which takes lengths only; workers look up the tokens.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from anyformer.data.batching import buckets, packing
from anyformer.data.batching.batch import Batch
from anyformer.data.batching.buckets import Bucketer
from anyformer.data.batching.collate import Arrays, Collator, batch_of
from anyformer.data.batching.fixed_rows import FixedRows, RowCollator
from anyformer.data.batching.order import Integers, Order
from anyformer.data.batching.packing import Packer
from anyformer.data.batching.row_plan import RowPlan
from anyformer.data.batching.stream import StreamCollator, StreamPlan, StreamRows
from anyformer.data.preparation.prepared import Prepared, Split
from anyformer.data.preparation.process_map import in_order
from anyformer.errors import DataError, SpecError

AHEAD = 4
"""Batches that each worker builds before they are asked for."""


class LoaderPosition(NamedTuple):
    """Where to go on: with the seed, all that a run has to remember about its data."""

    epoch: int = 0
    window: int = 0
    """Of the epoch."""
    unit: int = 0
    """Of the window: a row, a bucket batch, or a batch of a stream."""


class Delivery(NamedTuple):
    """A batch, or a rank's share of it, and the position after it."""

    batch: Batch
    position: LoaderPosition
    rows: int
    """Of the whole batch, over all ranks."""


class _Task(NamedTuple):
    sheet: RowPlan | StreamRows
    position: LoaderPosition


class _Result(NamedTuple):
    arrays: Arrays
    position: LoaderPosition
    rows: int


@dataclass(frozen=True)
class _Builder:
    """The same in every process: a task in, the arrays of a batch out."""

    collator: Any
    """What knows the sheets of its tasks: a Collator, a StreamCollator or a RowCollator."""
    rank: int
    world: int

    def build(self, task: _Task) -> _Result:
        widths = self.collator.widths(task.sheet)
        share = task.sheet.share(self.rank, self.world)
        return _Result(self.collator.arrays(share, widths), task.position, task.sheet.height)


@dataclass(frozen=True, kw_only=True)
class Loader:
    """Iterates over batches of about `batch_tokens` tokens, padding included, all ranks together.

    Each epoch has every sample once; its last batch may be smaller, and a rank's share of it may have no row.
    """

    prepared: Prepared
    split: str = "train"
    seed: int = 0
    batch_tokens: int
    rank: int = 0
    world: int = 1
    workers: int = 0
    """Processes that build batches ahead; 0: none."""
    start: LoaderPosition = LoaderPosition()
    """The position that came with the last batch that was used."""
    epochs: int | None = None
    """Stop before this epoch; None: never."""
    shuffle: bool = True
    """False: samples in the order of the source, as near as batches allow."""
    even: bool = False
    """True: the last batch of packed rows gets empty ones to the height of those before it, for a compiler's sake."""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise SpecError(f"rank={self.rank} must be between 0 and world-1={self.world - 1}.")
        if not len(self._samples):
            raise DataError(f"{self.prepared.folder}: the split {self.split!r} is empty.")
        sides, context = (2 if self.prepared.contents.pair else 1), self.prepared.context
        if self.batch_tokens < sides * context:
            longest = (
                f"a sequence of data.context={context}" if sides == 1 else f"a pair of data.context={context} each"
            )
            raise SpecError(f"train.batch_tokens={self.batch_tokens} has no room for {longest}.")

    def __iter__(self) -> Iterator[Delivery]:
        builder = _Builder(self._collator(), self.rank, self.world)
        if self.workers:
            results = in_order(builder.build, self._tasks(), self.workers, AHEAD)
        else:
            results = map(builder.build, self._tasks())
        return (Delivery(batch_of(result.arrays), result.position, result.rows) for result in results)

    @property
    def _samples(self) -> Split:
        return self.prepared.split(self.split)

    def _collator(self) -> Collator | StreamCollator | RowCollator:
        pad, starts = self.prepared.words.pad, self.prepared.word_starts
        if self.prepared.packing == "rows":
            tokens = self._samples.sides["tokens"].tokens
            return RowCollator(tokens, self.prepared.words, self.prepared.context, starts)
        if self.prepared.packing == "stream":
            return StreamCollator(self._samples.sides["tokens"], pad, starts)
        width = self.prepared.context if self.prepared.packing == "pack" else None
        return Collator(self._samples, pad, width, starts)

    def _planner(self) -> Packer | Bucketer:
        samples, context = self._samples, self.prepared.context
        sides = [side for name, side in samples.sides.items() if name != "choices"]

        def lengths(some: Integers) -> Integers:
            return np.stack([side.lengths(some) for side in sides])

        if self.prepared.packing == "pack":
            order = Order(len(samples), self.seed, packing.WINDOW, self.shuffle)
            return Packer(order, lengths, context, self.batch_tokens // (len(sides) * context))
        return Bucketer(Order(len(samples), self.seed, buckets.WINDOW, self.shuffle), lengths, self.batch_tokens)

    def _tasks(self) -> Iterator[_Task]:
        start, batches = self.start, self._batches()
        for epoch in count(start.epoch) if self.epochs is None else range(start.epoch, self.epochs):
            yield from batches(start if epoch == start.epoch else LoaderPosition(epoch))

    def _batches(self) -> Callable[[LoaderPosition], Iterator[_Task]]:
        """What gives the batches of an epoch from a position on."""
        if self.prepared.packing not in ("stream", "rows"):
            return partial(_epoch, self._planner(), self.even)
        context, tokens = self.prepared.context, self._samples.sides["tokens"].tokens.entry.count
        text = tokens, self.batch_tokens // context, context, self.seed, self.shuffle
        if self.prepared.packing == "stream":
            return partial(_stream, StreamPlan(*text))
        return partial(_rows, FixedRows(*text), self.even)


def _stream(lanes: StreamPlan, start: LoaderPosition) -> Iterator[_Task]:
    """The batches of an epoch from a position on, in which rows go on from batch to batch."""
    for batch, strip in lanes.strips(start.epoch, start.unit):
        last = batch + 1 == lanes.batches
        yield _Task(strip, LoaderPosition(start.epoch + 1) if last else LoaderPosition(start.epoch, 0, batch + 1))


def _rows(cuts: FixedRows, even: bool, start: LoaderPosition) -> Iterator[_Task]:
    """The same of rows that were cut out of the text; the first batch of an epoch is never filled up."""
    for first in range(start.unit, cuts.total, cuts.rows):
        end = first + cuts.rows
        after = LoaderPosition(start.epoch, 0, end) if end < cuts.total else LoaderPosition(start.epoch + 1)
        yield _Task(cuts.strip(start.epoch, first, even and first > 0), after)


def _epoch(planner: Packer | Bucketer, even: bool, start: LoaderPosition) -> Iterator[_Task]:
    """The same of rows that are planned in windows; a packed batch may take rows of several windows."""
    epoch, taken, missing, alone = start.epoch, RowPlan.blank(), planner.units, start == LoaderPosition(start.epoch)
    for window in range(start.window, planner.order.windows):
        plan = planner.plan(epoch, window)
        unit = start.unit if window == start.window else 0
        while unit < plan.units:
            last = min(unit + missing, plan.units)
            taken, missing, unit = taken.above(plan.take(unit, last)), missing - (last - unit), last
            if not missing:
                yield _Task(taken, _after(planner, LoaderPosition(epoch, window, unit), plan.units))
                taken, missing, alone = RowPlan.blank(), planner.units, False
    if taken.height:
        yield _Task(taken.filled_up(planner.units) if even and not alone else taken, LoaderPosition(epoch + 1))


def _after(planner: Packer | Bucketer, position: LoaderPosition, units: int) -> LoaderPosition:
    """The same place, named from the start of what comes next."""
    if position.unit < units:
        return position
    last = position.window + 1 == planner.order.windows
    return LoaderPosition(position.epoch + 1) if last else LoaderPosition(position.epoch, position.window + 1)
