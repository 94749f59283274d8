"""Associative recall: pairs of key and value, then a key; what was its value?          (Ba et al., arXiv 1610.06258)

c 9 k 8 j 3 k -> 8      the keys of a sample are all different
"""

from dataclasses import dataclass
from random import Random

from anyformer.core import Count
from anyformer.data.record import Record
from anyformer.data.synthetic.task import SyntheticTask, letters, spaced
from anyformer.errors import SpecError


@dataclass(frozen=True, kw_only=True)
class AssociativeRecall(SyntheticTask, kind="associative_recall"):
    """Find the value of a key among pairs: c 9 k 8 j 3 k -> 8."""

    pairs: Count = 8
    """Pairs before the question; the lag is twice as much."""
    symbols: Count = 26
    """How many different keys there are."""
    values: Count = 10
    """How many different values there are."""

    def check(self) -> None:
        if self.pairs > self.symbols:
            raise SpecError(f"pairs={self.pairs} need as many different keys, got symbols={self.symbols}.")

    def difficulty(self) -> tuple[float, int]:
        return 1 / self.values, 2 * self.pairs

    def sample(self, rng: Random) -> Record:
        keys = rng.sample(letters(self.symbols), self.pairs)
        values = rng.choices(range(self.values), k=self.pairs)
        query = rng.randrange(self.pairs)
        pairs = [word for pair in zip(keys, values, strict=True) for word in pair]
        return Record(spaced([*pairs, keys[query]]), label=str(values[query]))
