"""A yardstick: a simple method that a trained model should beat. A class with a kind is all that a new one needs."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import ClassVar, NamedTuple

from anyformer.core import Spec
from anyformer.data.record import Record
from anyformer.evaluation.metrics.score import Scores

MISSING = "pip install 'anyformer[yardsticks]'"


class ComparedScore(NamedTuple):
    """A score by which a model is compared with a yardstick."""

    name: str
    """Name of the score, as in the metric."""
    unit: str = "points"
    """Unit of a difference. A difference in points is a difference of shares in hundredths."""
    lower_is_better: bool = False
    digits: str = ".3g"
    """Format of a number that is not in points."""

    def number(self, value: float) -> str:
        """A difference without its unit."""
        return f"{100 * value:.1f}" if self.unit == "points" else f"{value:{self.digits}}"

    def amount(self, value: float) -> str:
        """A difference with its unit: "2.1 points"."""
        return f"{self.number(value)} {self.unit}".rstrip()

    def described(self, value: float) -> str:
        """The score itself: "accuracy 83.1 %"."""
        shown = f"{100 * value:.1f} %" if self.unit == "points" else self.number(value)
        return f"{self.name.replace('_', ' ')} {shown}"


ACCURACY = ComparedScore("accuracy")
CLASS_LOSS = ComparedScore("loss", "nats", lower_is_better=True, digits=".3f")
BITS_PER_BYTE = ComparedScore("bits_per_byte", "bits a byte", lower_is_better=True)


@dataclass(frozen=True, kw_only=True)
class Yardstick(Spec):
    """A simple method for a task, fitted to the training records and scored on held-out ones."""

    title: ClassVar[str]
    """What it is, as the subject of a sentence: "a bag of words"."""
    metric: ClassVar[str]
    """Kind of the metric whose scores it gives; it is shown for objectives that name this metric."""
    scores: ClassVar[tuple[ComparedScore, ...]]
    """The scores by which a model is compared with it."""
    needs: ClassVar[str | None] = None
    """A module of the extra `yardsticks` that must be installed."""

    def measure(self, train: Sequence[Record], held_out: Sequence[Record]) -> Scores:
        """The scores on the held-out records, in their order, so that a model can be compared record by record."""
        raise NotImplementedError

    @property
    def missing(self) -> bool:
        """True if a module that it needs is not installed."""
        return self.needs is not None and find_spec(self.needs) is None
