"""Bucket: batches of samples of similar length under a budget of tokens, padding included.

Pairs have two lengths, so sorting by one leaves the other ragged. The samples of a window are halved repeatedly across
the side that wastes more (a k-d tree: Bentley 1975) until each part is one batch; then the batches are shuffled.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from anyformer.data.batching.packings.packing import Arrays, Collator, PackingSpec, PackingTask
from anyformer.data.batching.row_plan import BatchPlan, Integers, Lengths, LoaderPosition, Order, RowPlan, windowed
from anyformer.data.preparation.encoding import SPECIAL_TOKENS

WINDOW = 1 << 17
ROOMS = (1.03, 1.08, 1.15)
"""Room for padding that is tried when a window is cut; which one needs fewest batches depends on the lengths."""


def fill(lengths: Integers, budget: int) -> list[Integers]:
    """Batches of samples: each has rows x (sum of the longest of every side) <= budget. `lengths` is [side, sample]."""
    tokens = int(lengths.sum())
    tries = [_halve(lengths, budget, max(1, round(tokens * room / budget))) for room in ROOMS]
    return min(tries, key=len)


def _halve(lengths: Integers, budget: int, count: int) -> list[Integers]:
    batches = []
    parts = [(np.arange(lengths.shape[1]), count)] if lengths.shape[1] else []
    while parts:
        samples, count = parts.pop()
        here = lengths[:, samples]
        longest = here.max(axis=1)
        if len(samples) == 1 or (count == 1 and len(samples) * int(longest.sum()) <= budget):
            batches.append(samples)
            continue
        count = max(count, 2)
        ragged = int(np.argmax(len(samples) * longest - here.sum(axis=1)))
        samples = samples[np.lexsort((*np.delete(here, ragged, axis=0), here[ragged]))]
        grown = np.cumsum(lengths[:, samples].sum(axis=0))
        cut = int(np.searchsorted(grown, grown[-1] * (count // 2 / count)))
        cut = min(max(cut, 1), len(samples) - 1)
        parts += [(samples[:cut], count // 2), (samples[cut:], count - count // 2)]
    return batches


def bucket_window(order: Order, lengths_of: Lengths, budget: int, epoch: int, window: int) -> BatchPlan:
    """The batches of a window, of at most `budget` tokens, in a random order. No sample is longer than the budget."""
    samples = order.samples_of(epoch, window)
    batches = fill(lengths_of(samples), budget)
    batches = [batches[place] for place in order.arrange(len(batches), epoch, window)]
    edges = np.cumsum([0, *map(len, batches)])
    return BatchPlan(RowPlan.one_each(samples[np.concatenate(batches)]), edges)


@dataclass(frozen=True, kw_only=True)
class Bucket(PackingSpec, kind="bucket"):
    """Each text or pair has a row of its own, and batches hold texts of similar length, padded to the longest."""

    alone = True
    reads_pairs = True

    def batches(self, task: PackingTask, start: LoaderPosition) -> Iterator[tuple[RowPlan, LoaderPosition]]:
        order = Order(len(task.samples), task.seed, WINDOW, task.shuffle)
        plan = partial(bucket_window, order, task.lengths, task.batch_tokens)
        return windowed(order, plan, 1, task.even, start)

    def collate(self, task: PackingTask, plan: RowPlan) -> Arrays:
        widest = task.context - SPECIAL_TOKENS if task.even else None
        return Collator(task.samples, task.words.pad, None, task.word_starts, widest).arrays(plan)
