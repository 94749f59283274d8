"""Reverse: repeat the text backwards, y_j = x_{n-1-j}          (as copy, but the last symbol is needed first)"""

from dataclasses import dataclass
from random import Random

from anyformer.core import Count
from anyformer.data.record import Record
from anyformer.data.synthetic.task import SyntheticTask, letters, spaced


@dataclass(frozen=True, kw_only=True)
class Reverse(SyntheticTask, kind="reverse"):
    """Repeat the text backwards: b d a -> a d b."""

    length: Count = 20
    """Symbols to reverse."""
    symbols: Count = 8
    """How many different symbols there are."""

    def difficulty(self) -> tuple[float, int]:
        return 1 / self.symbols, 2 * self.length - 1

    def sample(self, rng: Random) -> Record:
        drawn = rng.choices(letters(self.symbols), k=self.length)
        return Record(spaced(drawn), target=spaced(drawn[::-1]))
