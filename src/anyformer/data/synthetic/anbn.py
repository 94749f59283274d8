"""a^n b^n: as many b as a?          (the counting language of Gers and Schmidhuber 2001)

  a a b b -> yes      a a a b -> no

A wrong word has the length of a right one, so that length tells nothing. Words of one length are one group: there are
few right ones, and what is tested is counting, not remembering.
"""

from dataclasses import dataclass
from random import Random
from typing import Annotated

from anyformer.core import Range
from anyformer.data.record import Record
from anyformer.data.synthetic.task import SyntheticTask, spaced


@dataclass(frozen=True, kw_only=True)
class AnBn(SyntheticTask, kind="anbn"):
    """Are there as many b as a? a a b b -> yes, a a a b -> no."""

    length: Annotated[int, Range(low=4)] = 64
    """Symbols of the longest word; n is drawn from 2 to half of it."""

    def difficulty(self) -> tuple[float, int]:
        return 0.5, self.length // 2 * 2 - 1

    def sample(self, rng: Random) -> Record:
        half = rng.randint(2, self.length // 2)
        right = rng.random() < 0.5
        more = 0 if right else rng.choice((-1, 1)) * rng.randint(1, half - 1)
        word = "a" * (half + more) + "b" * (half - more)
        return Record(spaced(word), label="yes" if right else "no", group=f"{2 * half} symbols")
