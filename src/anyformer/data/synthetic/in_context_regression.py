"""In-context regression: examples of a line, then a new x; what is its y?          (Garg et al., arXiv 2208.01066)

  x_1 y_1 ... x_n y_n x -> y,      y = round((1 - s) u + s v),  s = x / (symbols - 1)

All numbers are binned to 0 ... symbols - 1; u and v, the heights at both ends, are real numbers drawn anew for every
sample. Answers in the middle would be more frequent, so the answer is drawn first, and lines until one has it. Rounding
blurs the examples: even the best reader errs by one now and then.
"""

from dataclasses import dataclass
from random import Random
from typing import Annotated

from anyformer.core import Range
from anyformer.data.record import Record
from anyformer.data.synthetic.task import SyntheticTask, spaced


@dataclass(frozen=True, kw_only=True)
class InContextRegression(SyntheticTask, kind="in_context_regression"):
    """Find the line from examples and apply it: 0 3 6 6 2 4 4 -> 5."""

    pairs: Annotated[int, Range(low=2)] = 10
    """Examples before the question; the first stands twice as far back."""
    symbols: Annotated[int, Range(low=2)] = 16
    """Bins of the numbers."""

    def difficulty(self) -> tuple[float, int]:
        return 1 / self.symbols, 2 * self.pairs

    def sample(self, rng: Random) -> Record:
        top, answer = self.symbols - 1, rng.randrange(self.symbols)
        while True:
            left, right, query = rng.uniform(-0.5, top + 0.5), rng.uniform(-0.5, top + 0.5), rng.randint(0, top)
            if self._height(left, right, query) == answer:
                break
        shown = rng.choices(range(self.symbols), k=self.pairs)
        pairs = [number for x in shown for number in (x, self._height(left, right, x))]
        return Record(spaced([*pairs, query]), label=str(answer))

    def _height(self, left: float, right: float, x: int) -> int:
        share = x / (self.symbols - 1)
        return min(max(round((1 - share) * left + share * right), 0), self.symbols - 1)
