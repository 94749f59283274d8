"""First-token recall: after a long text, which was its first symbol?          (the latch of Bengio et al. 1994)

All other symbols are noise from the same alphabet: one symbol has to be stored, and the others ignored.
"""

from dataclasses import dataclass
from random import Random

from anyformer.core import Count
from anyformer.data.record import Record
from anyformer.data.synthetic.task import SyntheticTask, letters, spaced


@dataclass(frozen=True, kw_only=True)
class FirstTokenRecall(SyntheticTask, kind="first_token_recall"):
    """Name the first symbol of a long text: c a a b d -> c."""

    length: Count = 50
    """Symbols of the text."""
    symbols: Count = 8
    """How many different symbols there are."""

    def difficulty(self) -> tuple[float, int]:
        return 1 / self.symbols, self.length - 1

    def sample(self, rng: Random) -> Record:
        drawn = rng.choices(letters(self.symbols), k=self.length)
        return Record(spaced(drawn), label=drawn[0])
