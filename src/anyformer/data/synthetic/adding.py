"""The adding problem: the sum of the two marked numbers          (Hochreiter and Schmidhuber 1997)

  4 +7 1 1 +3 8 -> 10      one mark in the first half, one in the second (as in arXiv 1511.06464)

Whole numbers from 0 to symbols - 1; the label can be learned as a class or as a number (the variance of the sums, what
always saying the mean would cost, is (symbols^2 - 1) / 6). Of all sums, symbols - 1 is the most frequent: 1 in symbols.
"""

from dataclasses import dataclass
from random import Random
from typing import Annotated

from anyformer.core import Count, Range
from anyformer.data.record import Record
from anyformer.data.synthetic.task import SyntheticTask, spaced


@dataclass(frozen=True, kw_only=True)
class Adding(SyntheticTask, kind="adding"):
    """Add the two marked numbers of a long list: 4 +7 1 1 +3 8 -> 10."""

    length: Annotated[int, Range(low=2)] = 50
    """Numbers of which two are marked."""
    symbols: Count = 10
    """Numbers are drawn from 0 up to this, itself not included."""

    def difficulty(self) -> tuple[float, int]:
        return 1 / self.symbols, self.length - 1

    def sample(self, rng: Random) -> Record:
        numbers = rng.choices(range(self.symbols), k=self.length)
        half = self.length // 2
        marked = rng.randrange(half), rng.randrange(half, self.length)
        words = [f"+{number}" if place in marked else str(number) for place, number in enumerate(numbers)]
        return Record(spaced(words), label=str(sum(numbers[place] for place in marked)))
