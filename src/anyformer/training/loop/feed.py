"""What each update is made of: a batch of the loader, prepared by the objective, counted, and cut into pieces.

Every rank prepares the whole batch and takes its rows of it, so masks and counts do not depend on how many there are.
A thread works ahead, so that the model never waits for it.
"""

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from queue import Queue
from typing import Any, NamedTuple

import torch

from anyformer.data.batching.batch import Batch
from anyformer.data.batching.loader import Loader
from anyformer.data.batching.order import LoaderPosition
from anyformer.data.batching.packed_bounds import bounded
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.objectives.document_bounds import text
from anyformer.objectives.objective import Objective
from anyformer.objectives.own import PARTS
from anyformer.training.loop.randomness import Purpose, generator

AHEAD = 6
"""Batches that are ready before they are asked for: planning a window of packed rows takes as long as a few updates."""
_END = object()


class PreparedBatch(NamedTuple):
    """A whole batch, prepared; all ranks see the same one."""

    step: int
    batch: Batch
    counts: Mapping[str, float]
    """How much each term weighs, over all ranks."""
    tokens: int
    """Tokens of the text, padding not counted."""
    position: LoaderPosition
    """Where the data go on after it."""

    @property
    def empty(self) -> bool:
        """True: nothing in it counts but what parts ask for themselves."""
        return not any(count for name, count in self.counts.items() if name != PARTS)


class MicroBatch(NamedTuple):
    """Rows that go through the model at once."""

    batch: Batch
    counts: bool
    """False: a stand-in of a rank that ran out of rows; it runs along and adds nothing."""


@dataclass(frozen=True)
class Feed:
    """Batches of a split, one for each step."""

    loader: Loader
    objective: Objective
    seed: int
    purpose: Purpose = Purpose.PREPARE
    first_step: int = 0
    ahead: bool = True
    device: torch.device = torch.device("cpu")
    """Where batches will go."""

    def __iter__(self) -> Iterator[PreparedBatch]:
        return _ahead(self._prepared()) if self.ahead else self._prepared()

    def _prepared(self) -> Iterator[PreparedBatch]:
        for step, delivery in enumerate(self.loader, self.first_step):
            raw, rng = delivery.batch, generator(self.seed, step, self.purpose)
            batch = self.objective.prepare(raw, self.loader.prepared.words, rng)
            counts = {name: float(count) for name, count in self.objective.counts(batch).items()}
            tokens = _tokens(raw, self.loader.prepared.words)
            waiting = batch.pinned() if self.device.type == "cuda" else batch
            yield PreparedBatch(step, waiting, counts, tokens, delivery.position)


def pieces(batch: Batch, most_tokens: int | None, rank: int = 0, world: int = 1) -> list[MicroBatch]:
    """A rank's rows in pieces of at most `most_tokens` (but at least one row); every rank has as many pieces. The
    bounds of packed documents are computed here, once for each piece: on the host, where nothing waits for them."""
    height, width = len(batch.tokens), width_of(batch)
    longest = -(-height // world)
    most = longest if most_tokens is None else max(1, most_tokens // width)
    if world == 1 and most >= height:
        return [MicroBatch(bounded(batch), True)]
    mine = torch.arange(rank, height, world)
    cut = [mine[start : start + most] for start in range(0, longest, most)]
    rows = [some if len(some) else torch.zeros(1, dtype=torch.long) for some in cut]
    return [MicroBatch(bounded(batch.take(taken)), len(some) > 0) for taken, some in zip(rows, cut, strict=True)]


def _tokens(raw: Batch, words: Vocabulary) -> int:
    """Of the text. Pairs count alike however they are laid out: the ends that data mark in packed ones do not count."""
    if raw.source is None:
        return int(raw.counted.sum())
    return sum(int(text(side, words).sum()) for side in (raw, raw.source))


def width_of(batch: Batch) -> int:
    """Tokens of a row, its source and what a mixture made of it included."""
    sides = (batch, batch.source, *batch.parts.values())
    return max(1, sum(side.tokens.shape[1] for side in sides if side is not None))


def _ahead(items: Iterator[Any]) -> Iterator[Any]:
    """The same items, made by a thread a few steps early. What goes wrong there is raised here."""
    queue: Queue[Any] = Queue(AHEAD)
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
        while thread.is_alive():  # it may be waiting for room
            if not queue.empty():
                queue.get()
            thread.join(0.01)
