"""A label from the future: the tag at t is the symbol at t + lag, y_t = x_{t+lag}

A model that sees the whole text has only to look ahead; a causal model is at chance, whatever its size. The last `lag`
tags are "none", as the best blind guess knows: chance = (lag + (n - lag) / symbols) / n.
"""

from dataclasses import dataclass
from random import Random

from anyformer.core import Count
from anyformer.data.record import Record
from anyformer.data.synthetic.task import SyntheticTask, letters, spaced
from anyformer.errors import SpecError

NOTHING = "none"


@dataclass(frozen=True, kw_only=True)
class FutureLabel(SyntheticTask, kind="future_label"):
    """At every place, name the symbol a few places further on: a b c d (lag 2) -> c d none none."""

    length: Count = 40
    """Symbols of the text."""
    symbols: Count = 8
    """How many different symbols there are."""
    lag: Count = 5
    """How far ahead the answer stands."""

    def check(self) -> None:
        if self.lag >= self.length:
            raise SpecError(f"lag={self.lag} looks beyond the end of every text of length={self.length}.")

    def difficulty(self) -> tuple[float, int]:
        return (self.lag + (self.length - self.lag) / self.symbols) / self.length, self.lag

    def sample(self, rng: Random) -> Record:
        drawn = rng.choices(letters(self.symbols), k=self.length)
        return Record(spaced(drawn), tags=(*drawn[self.lag :], *[NOTHING] * self.lag))
