"""Batches in an order that depends on the seed alone.

Each batch is a pure function of (seed, position): worker processes and micro-batches change which process builds a row,
never its content. The main process plans, which takes lengths only; workers look up the tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from anyformer.data.batching.batch import Batch
from anyformer.data.batching.collate import Arrays, batch_of
from anyformer.data.batching.packings.packing import PackingSpec, PackingTask
from anyformer.data.batching.row_plan import LoaderPosition
from anyformer.data.preparation.encoding import in_order
from anyformer.data.preparation.prepared import Prepared
from anyformer.errors import DataError, SpecError

PREFETCH = 4
"""Batches that each worker builds in advance."""


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
        batches = in_order(build, plans, self.workers, PREFETCH) if self.workers else map(build, plans)
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
