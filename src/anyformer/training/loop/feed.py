"""Batches for updates: loaded in an order that depends on the seed alone, prepared and counted by the objective, split
into micro-batches; and the random streams of a run, by purpose and step.

Each loaded batch is a pure function of (seed, position): worker processes and micro-batches change which process builds
a row, never its content. The main process plans, which takes lengths only; workers look up the tokens.

Every rank prepares the whole batch and takes its rows of it, so masks and counts do not depend on the world size.
A thread prefetches, so that the model does not wait for data.
"""

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from itertools import count
from queue import Queue
from typing import Any, NamedTuple

import torch

from anyformer.data.batching.batch import Batch, bounded, text
from anyformer.data.batching.packings.packing import Arrays, PackingSpec, PackingTask, batch_of
from anyformer.data.batching.row_plan import LoaderPosition, few_sizes, mix
from anyformer.data.preparation.encoding import in_order
from anyformer.data.preparation.shards import Prepared
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.errors import DataError, SpecError
from anyformer.objectives.objective import Objective
from anyformer.objectives.words import PARTS
from anyformer.ops.devices import on_gpu

PREFETCH = 6
"""Batches prepared in advance: planning a window of packed rows takes as long as a few updates."""
PER_WORKER = 4
"""Batches that each worker process builds in advance."""
_END = object()


class Purpose(IntEnum):
    """The use of random numbers. The value is part of the derived seed and must never change."""

    PREPARE = 1
    DROPOUT = 2
    LOSS = 3
    EVALUATE = 4
    SAMPLE = 5


def derive(seed: int, step: int, purpose: Purpose, *more: int) -> int:
    """The seed for one purpose at one step."""
    return mix(seed, step, purpose, *more) >> 1  # torch takes 63 bits


def generator(seed: int, step: int, purpose: Purpose, *more: int) -> torch.Generator:
    """A CPU generator for one purpose at one step."""
    return torch.Generator().manual_seed(derive(seed, step, purpose, *more))


@dataclass(frozen=True, kw_only=True)
class Loader:
    """Iterates over batches of about `batch_tokens` tokens, padding included, each with the position after it.

    Each epoch has every sample once; its last batch may be smaller.
    """

    prepared: Prepared
    split: str = "train"
    seed: int = 0
    batch_tokens: int
    workers: int = 0
    """Processes that build batches ahead; 0: none."""
    start: LoaderPosition = LoaderPosition()
    """The position that came with the last batch that was used."""
    epochs: int | None = None
    """Stop before this epoch; None: never."""
    shuffle: bool = True
    """False: samples in the order of the source, as near as batches allow."""
    even: bool = False
    """True: batches get empty rows or more padding, so that they have one shape, or few."""

    def __post_init__(self) -> None:
        if not len(self.prepared.split(self.split)):
            raise DataError(f"{self.prepared.folder}: the split {self.split!r} is empty.")
        pair, context = self.prepared.contents.pair, self.prepared.context
        if self.batch_tokens < (2 * context if pair else context):
            longest = f"a pair of data.context={context} each" if pair else f"a sequence of data.context={context}"
            raise SpecError(f"train.batch_tokens={self.batch_tokens} has no room for {longest}.")

    def __iter__(self) -> Iterator[tuple[Batch, LoaderPosition]]:
        task = PackingTask(
            samples=self.prepared.split(self.split),
            words=self.prepared.words,
            word_starts=self.prepared.word_starts,
            context=self.prepared.context,
            batch_tokens=self.batch_tokens,
            seed=self.seed,
            shuffle=self.shuffle,
            even=self.even,
        )
        build, plans = partial(_build, self.prepared.packing, task), self._plans(task)
        batches = in_order(build, plans, self.workers, PER_WORKER) if self.workers else map(build, plans)
        return ((batch_of(arrays), position) for arrays, position in batches)

    def _plans(self, task: PackingTask) -> Iterator[tuple[Any, LoaderPosition]]:
        for epoch in count(self.start.epoch) if self.epochs is None else range(self.start.epoch, self.epochs):
            start = self.start if epoch == self.start.epoch else LoaderPosition(epoch)
            yield from self.prepared.packing.batches(task, start)


def _build(
    packing: PackingSpec, task: PackingTask, planned: tuple[Any, LoaderPosition]
) -> tuple[Arrays, LoaderPosition]:
    plan, position = planned
    arrays = packing.collate(task, plan)
    packing.check_arrays(arrays)
    return arrays, position


class PreparedBatch(NamedTuple):
    """A whole prepared batch; the same on all ranks."""

    step: int
    batch: Batch
    counts: Mapping[str, float]
    """Total weight of each loss term, over all ranks."""
    tokens: int
    """Tokens of text, without padding."""
    position: LoaderPosition
    """Position of the loader after this batch."""

    @property
    def counted(self) -> list[str]:
        """The terms of which something counts."""
        return [name for name, count in self.counts.items() if count]

    @property
    def empty(self) -> bool:
        """True if nothing in the batch counts, apart from auxiliary losses of parts."""
        return not any(count for name, count in self.counts.items() if name != PARTS)

    def split(self, most_tokens: int | None, rank: int = 0, world: int = 1) -> list[tuple[Batch, bool]]:
        """The rows of a rank in micro-batches of at most `most_tokens` tokens (but at least one row), and whether they
        count: all ranks have as many, so that collectives match, and the extra ones of a rank without rows add 0. The
        bounds of packed documents are computed here, on the host."""
        height = len(self.batch.tokens)
        longest = -(-height // world)
        most = longest if most_tokens is None else max(1, most_tokens // width_of(self.batch))
        if world == 1 and most >= height:
            return [(bounded(self.batch), True)]
        mine = torch.arange(rank, height, world)
        cut = [mine[start : start + most] for start in range(0, longest, most)]
        first = torch.zeros(1, dtype=torch.long)
        return [(bounded(self.batch.take(rows if len(rows) else first)), len(rows) > 0) for rows in cut]


@dataclass(frozen=True)
class Feed:
    """The prepared batches of a split, one for each step."""

    loader: Loader
    objective: Objective
    seed: int
    purpose: Purpose = Purpose.PREPARE
    first_step: int = 0
    prefetch: bool = True
    device: torch.device = torch.device("cpu")
    """Device that batches will be copied to."""
    few_heights: bool = False
    """True: batches get rows of weight 0, so that few numbers of rows occur."""

    def __iter__(self) -> Iterator[PreparedBatch]:
        return _prefetched(self._prepared()) if self.prefetch else self._prepared()

    def _prepared(self) -> Iterator[PreparedBatch]:
        for step, (raw, position) in enumerate(self.loader, self.first_step):
            rng = generator(self.seed, step, self.purpose)
            batch = self.objective.prepare(raw, self.loader.prepared.words, rng)
            batch = batch.with_rows(few_sizes(len(batch.tokens))) if self.few_heights else batch
            counts = {name: float(count) for name, count in self.objective.counts(batch).items()}
            tokens = _tokens(raw, self.loader.prepared.words)
            batch = batch.pinned() if on_gpu(self.device) else batch
            yield PreparedBatch(step, batch, counts, tokens, position)


def _tokens(raw: Batch, words: Vocabulary) -> int:
    """Number of text tokens, without padding. End markers of packed pairs are not counted, so that the number does not
    depend on the packing."""
    if raw.source is None:
        return int(raw.counted.sum())
    return sum(int(text(side, words).sum()) for side in (raw, raw.source))


def width_of(batch: Batch) -> int:
    """Tokens of a row, including its source and the copies that a mixture of objectives made of it."""
    sides = (batch, batch.source, *batch.parts.values())
    return max(1, sum(side.tokens.shape[1] for side in sides if side is not None))


def _prefetched(items: Iterator[Any]) -> Iterator[Any]:
    """The same items, produced by a thread a few steps early. Errors of the thread are raised here."""
    queue: Queue[Any] = Queue(PREFETCH)
    stop = threading.Event()

    def work() -> None:
        try:
            for item in items:
                queue.put(item)
                if stop.is_set():
                    return
            queue.put(_END)
        except BaseException as error:
            queue.put(error)

    thread = threading.Thread(target=work, daemon=True, name="feed")
    thread.start()
    try:
        while (item := queue.get()) is not _END:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        while thread.is_alive():  # it may be blocked on a full queue
            if not queue.empty():
                queue.get()
            thread.join(0.01)
