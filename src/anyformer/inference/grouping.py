"""How texts are grouped into batches: next to no padding, in as few passes as that allows.

Texts sorted by length are cut into stretches; every text of a stretch is as long as its longest. The cheapest cuts by

cost = sum over stretches of rows x longest + start x passes

are found exactly, from the shortest length to the longest (dynamic programming over the lengths that there are).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]


class Pass(NamedTuple):
    """Size and fixed cost of one pass through a model."""

    tokens: int
    """Most tokens of one pass, padding included."""
    start: int
    """Fixed cost of a pass, in tokens."""


ON_CPU = Pass(tokens=2048, start=32)
"""More tokens leave the cache; below 256 the weights are read for too little work (benchmarks/embeddings.py)."""
ELSEWHERE = Pass(tokens=32768, start=4096)
"""Small passes would leave a GPU waiting for the host. No other sizes were measured there."""


def grouped(lengths: Sequence[int] | Integers, price: Pass) -> Iterator[list[int]]:
    """The indices of the texts of each batch, the shortest first."""
    order = np.argsort(np.asarray(lengths), kind="stable")
    values, first = np.unique(np.asarray(lengths)[order], return_index=True)
    first = np.append(first, len(order))
    for start, stop in _stretches(values, first, price):
        places = order[first[start] : first[stop]].tolist()
        rows = max(1, price.tokens // int(values[stop - 1]))
        yield from (places[at : at + rows] for at in range(0, len(places), rows))


def _stretches(values: Integers, first: Integers, price: Pass) -> list[tuple[int, int]]:
    """The cheapest stretches of lengths, as ranges of indices into `values`."""
    best, cut = np.zeros(len(values) + 1), np.zeros(len(values) + 1, dtype=np.int64)
    for stop in range(1, len(values) + 1):
        tokens = (first[stop] - first[:stop]) * values[stop - 1]
        costs = best[:stop] + tokens + price.start * np.ceil(tokens / price.tokens)
        cut[stop] = costs.argmin()
        best[stop] = costs[cut[stop]]
    stretches, stop = [], len(values)
    while stop:
        stretches.append((int(cut[stop]), stop))
        stop = int(cut[stop])
    return stretches[::-1]
