"""Buckets: batches of samples of like length under a budget of tokens, padding included.

Pairs have two lengths, so sorting by one leaves the other ragged. The samples of a window are halved again and again
across the side that wastes more (a k-d tree: Bentley 1975) until each part is one batch; then the batches are shuffled.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from anyformer.data.batching.order import Integers, Order
from anyformer.data.batching.row_plan import BatchPlan, RowPlan

WINDOW = 1 << 17
# Parts are made for a budget with some room for padding; the room that needs fewest batches depends on the lengths.
ROOMS = (1.03, 1.08, 1.15)


def fill(lengths: Integers, budget: int) -> list[Integers]:
    """Batches of places: each is rows x (sum of the longest of every side) <= budget. `lengths` is [side, sample]."""
    tokens = int(lengths.sum())
    tries = [_halve(lengths, budget, max(1, round(tokens * room / budget))) for room in ROOMS]
    return min(tries, key=len)


def _halve(lengths: Integers, budget: int, batches: int) -> list[Integers]:
    found = []
    parts = [(np.arange(lengths.shape[1]), batches)] if lengths.shape[1] else []
    while parts:
        places, wanted = parts.pop()
        here = lengths[:, places]
        longest = here.max(axis=1)
        if len(places) == 1 or (wanted == 1 and len(places) * int(longest.sum()) <= budget):
            found.append(places)
            continue
        wanted = max(wanted, 2)
        ragged = int(np.argmax(len(places) * longest - here.sum(axis=1)))
        places = places[np.lexsort((*np.delete(here, ragged, axis=0), here[ragged]))]
        grown = np.cumsum(lengths[:, places].sum(axis=0))
        cut = int(np.searchsorted(grown, grown[-1] * (wanted // 2 / wanted)))
        cut = min(max(cut, 1), len(places) - 1)
        parts += [(places[:cut], wanted // 2), (places[cut:], wanted - wanted // 2)]
    return found


@dataclass(frozen=True, eq=False)
class Bucketer:
    """Plans batches of at most `budget` tokens."""

    order: Order
    lengths: Callable[[Integers], Integers]
    """Tokens of some samples, [side, sample]; no sample is longer than the budget."""
    budget: int
    units: int = 1
    """Units of a batch: it is planned whole."""

    def plan(self, epoch: int, window: int) -> BatchPlan:
        samples = self.order.samples_of(epoch, window)
        batches = fill(self.lengths(samples), self.budget)
        batches = [batches[place] for place in self.order.arrange(len(batches), epoch, window)]
        edges = np.cumsum([0, *map(len, batches)])
        return BatchPlan(RowPlan.one_each(samples[np.concatenate(batches)]), edges)
