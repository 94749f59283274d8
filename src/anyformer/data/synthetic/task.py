"""What every synthetic task is: sample i is a pure function of (seed, i), and one knows what guessing would reach.

`chance` is the accuracy of the best guess that knows the task and the place of the answer but reads nothing: per symbol
of a target, per label, per tag. `lag` is the distance, in symbols, from the place that answers to the farthest symbol
that it may need: a tag is answered at its own word, a label at the last word, a target's word by the one before it,
the target standing after the text with one separator between them.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice, product
from random import Random
from string import ascii_lowercase
from typing import Any, ClassVar, Self

from anyformer.core import Count
from anyformer.data.record import Record, SourceSpec


@dataclass(frozen=True, kw_only=True)
class SyntheticTask(SourceSpec):
    """A synthetic task. Symbols are separated by spaces: read it with the tokenizer `word`."""

    usual_tokenizer: ClassVar[Mapping[str, Any]] = {"kind": "word"}
    expected = ("duplicates", "identical", "overlap")  # drawn from a small world; splits still share no text
    count: Count = 10_000
    """Samples."""
    seed: int = 0
    """Another seed, other samples."""

    @property
    def chance(self) -> float:
        """Accuracy of the best guess that reads nothing."""
        raise NotImplementedError

    @property
    def lag(self) -> int:
        """How far from its answer the farthest clue may stand."""
        raise NotImplementedError

    def sample(self, rng: Random) -> Record:
        """One sample; all its randomness comes from `rng`."""
        raise NotImplementedError

    def record(self, index: int) -> Record:
        """Sample number `index`, whichever were asked for before."""
        drawn = self.sample(Random(f"{self.kind} {self.seed} {index}"))
        return replace(drawn, where=f"{self.kind} sample {index}")

    def records(self) -> Iterator[Record]:
        return map(self.record, range(self.count))

    def fingerprint(self) -> str:
        # the first samples too: they change when the rule does
        first = [self.record(index) for index in range(min(self.count, 8))]
        return hashlib.sha256(f"{self.digest()} {first}".encode()).hexdigest()

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        return (cls(count=100),)


def letters(size: int) -> list[str]:
    """`size` symbols: a, b, ..., z, aa, ab, ..."""
    endless = ("".join(word) for length in count(1) for word in product(ascii_lowercase, repeat=length))
    return list(islice(endless, size))


def spaced(symbols: Sequence[object]) -> str:
    """Symbols as text."""
    return " ".join(map(str, symbols))
