"""Flip-flop: write a bit, ignore bits, read the last that was written          (Liu et al., arXiv 2306.00946)

w 1 i 0 i 0 r 1 w 0 i 1 r -> 0      one bit of memory; attention glitches where the last w is far or distractors many
"""

from dataclasses import dataclass
from random import Random
from typing import Annotated

from anyformer.core import Chance, Range
from anyformer.data.record import Record
from anyformer.data.synthetic.task import SyntheticTask, spaced


@dataclass(frozen=True, kw_only=True)
class FlipFlop(SyntheticTask, kind="flip_flop"):
    """Read the bit that was written last: w 1 i 0 w 0 i 1 r -> 0."""

    length: Annotated[int, Range(low=2)] = 32
    """Instructions, each but the last followed by its bit; the first writes, the last reads."""
    ignore: Chance = 0.8
    """Share of instructions to ignore; the others write or read with equal chance."""

    def difficulty(self) -> tuple[float, int]:
        return 0.5, 2 * self.length - 3

    def sample(self, rng: Random) -> Record:
        stored = rng.randrange(2)
        words: list[object] = ["w", stored]
        for _ in range(self.length - 2):
            instruction = "i" if rng.random() < self.ignore else rng.choice("wr")
            bit = stored if instruction == "r" else rng.randrange(2)
            stored = bit if instruction == "w" else stored
            words += instruction, bit
        return Record(spaced([*words, "r"]), label=str(stored))
