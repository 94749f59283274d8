"""ListOps: the value of nested operations on digits          (Nangia and Bowman, arXiv 1804.06028)

  [MAX 2 9 [MIN 4 7 ] 0 ] -> 9

MIN, MAX, MED (the median, rounded down) and SM (the sum modulo 10). A random shape is grown until it is about `length`
symbols long. Answers would not be equally frequent, so the answer is drawn first, and fillings of the shape until one
has it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import Annotated, Any

from anyformer.core import Count, Range
from anyformer.data.record import Record
from anyformer.data.synthetic.task import SyntheticTask, spaced

OPERATIONS: dict[str, Callable[[Sequence[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(median(values)),
    "[SM": lambda values: sum(values) % 10,
}
NAMES = tuple(OPERATIONS)
Shape = list[Any]
"""The arguments of an operation: None for a digit, a shape for an operation inside."""


@dataclass(frozen=True, kw_only=True)
class ListOps(SyntheticTask, kind="listops"):
    """The value of nested operations on digits: [MAX 2 9 [MIN 4 7 ] 0 ] -> 9."""

    length: Annotated[int, Range(low=4)] = 50
    """Symbols of an expression at most; what is missing is no room for one operation more."""
    depth: Count = 4
    """Operations inside each other at most."""
    arguments: Annotated[int, Range(low=2)] = 5
    """Arguments of an operation at most; at least two."""

    def difficulty(self) -> tuple[float, int]:
        return 0.1, self.length - 1

    def sample(self, rng: Random) -> Record:
        shape, answer = self._shape(rng), rng.randrange(10)
        while True:
            words: list[str] = []
            if _fill(shape, rng, words) == answer:
                return Record(spaced(words), label=str(answer))

    def _shape(self, rng: Random) -> Shape:
        root: Shape = [None] * rng.randint(2, min(self.arguments, self.length - 2))
        size = len(root) + 2
        digits = [(root, place, 1) for place in range(len(root))]
        while self.depth > 1 and digits:
            operation, place, depth = digits.pop(rng.randrange(len(digits)))
            inner: Shape = [None] * rng.randint(2, self.arguments)
            size += len(inner) + 1
            if size > self.length:
                break
            operation[place] = inner
            if depth + 1 < self.depth:
                digits += ((inner, below, depth + 1) for below in range(len(inner)))
        return root


def _fill(shape: Shape, rng: Random, words: list[str]) -> int:
    """Writes an operation of this shape to the end of `words`; its value."""
    name = rng.choice(NAMES)
    words.append(name)
    values = []
    for inner in shape:
        if inner is None:
            values.append(int(rng.random() * 10))
            words.append(str(values[-1]))
        else:
            values.append(_fill(inner, rng, words))
    words.append("]")
    return OPERATIONS[name](values)
