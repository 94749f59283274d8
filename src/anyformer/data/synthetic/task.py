"""The base of every synthetic task: sample i is a pure function of (seed, i), and the accuracy of guessing is known."""

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

    natural: ClassVar[bool] = False
    usual_tokenizer: ClassVar[Mapping[str, Any]] = {"kind": "word"}
    expected = ("duplicates", "identical", "overlap", "unseen_labels")  # a small world; splits still share no text
    count: Count = 10_000
    """Samples."""
    seed: int = 0
    """Another seed, other samples."""

    def difficulty(self) -> tuple[float, int]:
        """Chance and lag.

        Chance is the accuracy of the best guess that knows the task and the place of the answer but reads nothing: per
        symbol of a target, per label, per tag. Lag is the distance, in symbols, from the position that predicts the
        answer to the farthest symbol that it may need: a tag is predicted at its word, a label at the last word, a word
        of a target at the word before it, where the target follows the text after one separator.
        """
        raise NotImplementedError

    @property
    def chance(self) -> float:
        """Accuracy of the best guess that reads nothing."""
        return self.difficulty()[0]

    @property
    def lag(self) -> int:
        """Distance from the answer to the farthest symbol that it depends on."""
        return self.difficulty()[1]

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
        return self.hash_with([self.record(index) for index in range(min(self.count, 8))])

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
