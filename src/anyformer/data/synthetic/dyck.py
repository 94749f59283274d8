"""Dyck words: is every bracket closed, by its own kind, in the right order?          (Chomsky and Schuetzenberger 1963)

  ( [ ] ) -> yes      ( [ ) ] -> no

Words of the language are drawn uniformly (Arnold and Sleep 1980): with h open brackets and r symbols to come, the next
one opens with probability (h + 2)(r - h) / (2 r (h + 1)). A wrong word is a right one with two symbols swapped, so
that counting symbols tells nothing. One word in two is wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Annotated

from anyformer.core import Range
from anyformer.data.record import Record
from anyformer.data.synthetic.task import SyntheticTask, spaced
from anyformer.errors import SpecError

BRACKETS = (("(", ")"), ("[", "]"), ("{", "}"), ("<", ">"))
PARTNER = {closing: opening for opening, closing in BRACKETS}


@dataclass(frozen=True, kw_only=True)
class Dyck(SyntheticTask, kind="dyck"):
    """Are the brackets balanced? ( [ ] ) -> yes, ( [ ) ] -> no."""

    length: Annotated[int, Range(low=2)] = 32
    """Brackets of the word, an even number."""
    symbols: Annotated[int, Range(low=1, high=len(BRACKETS))] = 2
    """Kinds of brackets."""

    def check(self) -> None:
        if self.length % 2:
            raise SpecError(f"length={self.length}: brackets come in pairs. Use {self.length + 1}.")

    def difficulty(self) -> tuple[float, int]:
        return 0.5, self.length - 1

    def sample(self, rng: Random) -> Record:
        word = self._word(rng)
        right = rng.random() < 0.5
        while not right and balanced(word):
            one, other = rng.sample(range(self.length), 2)
            word[one], word[other] = word[other], word[one]
        return Record(spaced(word), label="yes" if right else "no")

    def _word(self, rng: Random) -> list[str]:
        word: list[str] = []
        waiting: list[str] = []
        for rest in range(self.length, 0, -1):
            height = len(waiting)
            if rng.random() * 2 * rest * (height + 1) < (height + 2) * (rest - height):
                opening, closing = rng.choice(BRACKETS[: self.symbols])
                word.append(opening)
                waiting.append(closing)
            else:
                word.append(waiting.pop())
        return word


def balanced(word: Sequence[str]) -> bool:
    """Whether every bracket is closed by its own kind in the right order."""
    waiting: list[str] = []
    for bracket in word:
        if bracket not in PARTNER:
            waiting.append(bracket)
        elif not waiting or waiting.pop() != PARTNER[bracket]:
            return False
    return not waiting
