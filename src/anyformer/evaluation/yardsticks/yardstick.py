"""A yardstick: a simple method that a trained model should beat. A class with a kind is all that a new one needs."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import ClassVar

from anyformer.core import Spec
from anyformer.data.record import Record
from anyformer.evaluation.metrics.score import Scores

MISSING = "pip install 'anyformer[yardsticks]'"


@dataclass(frozen=True, kw_only=True)
class Yardstick(Spec):
    """A simple method for a task, fitted to the training records and scored on held-out ones."""

    title: ClassVar[str]
    """What it is, as the subject of a sentence: "a bag of words"."""
    metric: ClassVar[str]
    """Kind of the metric whose scores it gives; it is shown for objectives that name this metric."""
    score: ClassVar[str]
    """Name of the score by which a model is compared with it."""
    unit: ClassVar[str] = "points"
    """What differences of this score are counted in; points are hundredths of a share."""
    lower_is_better: ClassVar[bool] = False
    needs: ClassVar[str | None] = None
    """A module of the extra `yardsticks` that must be installed."""

    def measure(self, train: Sequence[Record], held_out: Sequence[Record]) -> Scores:
        """The scores on the held-out records, in their order, so that a model can be compared record by record."""
        raise NotImplementedError

    @property
    def missing(self) -> bool:
        """True if a module that it needs is not installed."""
        return self.needs is not None and find_spec(self.needs) is None


def text_of(record: Record) -> str:
    """The text that a method without structure reads: both texts of a pair, one after the other."""
    return record.text if record.target is None else f"{record.text}\n{record.target}"
