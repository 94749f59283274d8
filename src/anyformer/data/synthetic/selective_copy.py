"""Selective copying: repeat the symbols at random places among blanks          (Gu and Dao, arXiv 2312.00752)

. b . . a . -> b a      fixed distances (a convolution, a time-invariant recurrence) are of no help: content decides
"""

from dataclasses import dataclass
from random import Random

from anyformer.core import Count
from anyformer.data.record import Record
from anyformer.data.synthetic.task import SyntheticTask, letters, spaced
from anyformer.errors import SpecError

BLANK = "."


@dataclass(frozen=True, kw_only=True)
class SelectiveCopy(SyntheticTask, kind="selective_copy"):
    """Repeat the symbols among blanks: . b . . a . -> b a."""

    length: Count = 50
    """Symbols of the text, blanks included; also the lag."""
    items: Count = 8
    """Symbols that are no blanks."""
    symbols: Count = 8
    """How many different symbols there are, the blank aside."""

    def check(self) -> None:
        if self.items > self.length:
            raise SpecError(f"items={self.items} do not fit into length={self.length}.")

    def difficulty(self) -> tuple[float, int]:
        return 1 / self.symbols, self.length

    def sample(self, rng: Random) -> Record:
        drawn = rng.choices(letters(self.symbols), k=self.items)
        words = [BLANK] * self.length
        for place, symbol in zip(sorted(rng.sample(range(self.length), self.items)), drawn, strict=True):
            words[place] = symbol
        return Record(spaced(words), target=spaced(drawn))
