"""Parity: at every place, is the number of ones so far even or odd?   y_t = x_1 xor ... xor x_t

The smallest task that needs a state: one bit and one flip, easy for a recurrent network, and out of reach at growing
length for attention of fixed depth (Hahn, arXiv 1906.06755). The label is the parity of the whole.
"""

from dataclasses import dataclass
from itertools import accumulate
from operator import xor
from random import Random

from anyformer.core import Count
from anyformer.data.record import Record
from anyformer.data.synthetic.task import SyntheticTask, spaced

NAMES = ("even", "odd")


@dataclass(frozen=True, kw_only=True)
class Parity(SyntheticTask, kind="parity"):
    """Even or odd many ones so far, at every place: 1 0 1 1 -> odd odd even odd."""

    length: Count = 40
    """Bits of the text."""

    def difficulty(self) -> tuple[float, int]:
        return 0.5, self.length - 1

    def sample(self, rng: Random) -> Record:
        bits = rng.choices((0, 1), k=self.length)
        tags = tuple(NAMES[bit] for bit in accumulate(bits, xor))
        return Record(spaced(bits), label=tags[-1], tags=tags)
