"""Modular addition: a + b mod p          (the task of "grokking", Power et al., arXiv 2201.02177)

17 + 58 + 60 = -> 38      with p = 97
"""

from dataclasses import dataclass
from random import Random
from typing import Annotated

from anyformer.core import Count, Range
from anyformer.data.record import Record
from anyformer.data.synthetic.task import SyntheticTask


@dataclass(frozen=True, kw_only=True)
class ModularAddition(SyntheticTask, kind="modular_addition"):
    """The sum of numbers modulo another: 17 + 90 = -> 10 (mod 97)."""

    symbols: Count = 97
    """The modulus: numbers are drawn from 0 up to this, itself not included."""
    terms: Annotated[int, Range(low=2)] = 2
    """Numbers to add; the lag is 2 terms - 1."""

    def difficulty(self) -> tuple[float, int]:
        return 1 / self.symbols, 2 * self.terms - 1

    def sample(self, rng: Random) -> Record:
        numbers = rng.choices(range(self.symbols), k=self.terms)
        return Record(f"{' + '.join(map(str, numbers))} =", label=str(sum(numbers) % self.symbols))
