"""Copy: repeat the text, y_j = x_j          (Neural Turing Machines, arXiv 1410.5401)

The whole text has to pass through the state: log2(symbols) bits for each symbol.
"""

from dataclasses import dataclass
from random import Random

from anyformer.core import Count
from anyformer.data.record import Record
from anyformer.data.synthetic.task import SyntheticTask, letters, spaced


@dataclass(frozen=True, kw_only=True)
class Copy(SyntheticTask, kind="copy"):
    """Repeat the text: b d a -> b d a."""

    length: Count = 20
    """Symbols to copy; also the lag."""
    symbols: Count = 8
    """How many different symbols there are."""

    def difficulty(self) -> tuple[float, int]:
        return 1 / self.symbols, self.length

    def sample(self, rng: Random) -> Record:
        text = spaced(rng.choices(letters(self.symbols), k=self.length))
        return Record(text, target=text)
