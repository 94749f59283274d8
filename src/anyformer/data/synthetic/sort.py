"""Sort: the numbers of the text, smallest first, y_j = x_(j)          (Neural Turing Machines, arXiv 1410.5401)

A blind guess knows that small numbers come first. With F(v) = (v + 1) / symbols, the j-th smallest of n is at most v
with probability P(j, v) = sum_{i >= j} C(n, i) F(v)^i (1 - F(v))^(n - i), and the best guess for it is the most
frequent value, without regard to the earlier numbers of the answer.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import comb
from random import Random

from anyformer.core import Count
from anyformer.data.record import Record
from anyformer.data.synthetic.task import SyntheticTask, spaced


@dataclass(frozen=True, kw_only=True)
class Sort(SyntheticTask, kind="sort"):
    """Sort the numbers of the text: 7 2 9 2 -> 2 2 7 9."""

    length: Count = 20
    """Numbers to sort."""
    symbols: Count = 20
    """Numbers are drawn from 0 up to this, itself not included."""

    def difficulty(self) -> tuple[float, int]:
        n, best = self.length, 0.0
        for j in range(1, n + 1):
            below = [  # P(j-th smallest < v) for v = 0 ... symbols
                sum(comb(n, i) * share**i * (1 - share) ** (n - i) for i in range(j, n + 1))
                for share in (v / self.symbols for v in range(self.symbols + 1))
            ]
            best += max(high - low for low, high in pairwise(below))
        return best / n, 2 * n - 1

    def sample(self, rng: Random) -> Record:
        drawn = rng.choices(range(self.symbols), k=self.length)
        return Record(spaced(drawn), target=spaced(sorted(drawn)))
