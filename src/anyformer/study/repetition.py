"""The verdicts of a study repeated with fresh seeds: how many come again.

Only directional verdicts count: differences that the seeds of the study settled. One comes again if the fresh seeds,
which are judged alone, settle it too, with the same sign.
"""

from dataclasses import dataclass
from typing import Any

from anyformer.core.readable_numbers import counted, spelled
from anyformer.statistics.comparison import Comparison, Difference
from anyformer.statistics.intervals import difference_text


@dataclass(frozen=True)
class RepeatedVerdict:
    """A settled difference, and the same difference with fresh seeds."""

    first: Difference
    fresh: Difference
    again: bool
    """True if the fresh seeds settle it too, with the same sign."""
    budget: int | None = None
    """Steps; None for a study at one budget."""

    @property
    def name(self) -> str:
        """The arm, and the budget if there are several: lstm at 610 steps."""
        return self.first.arm if self.budget is None else f"{self.first.arm} at {counted(self.budget, 'steps')}"

    @property
    def row(self) -> dict[str, str]:
        """A row of the report."""
        return {
            "arm": self.name,
            "difference (95 %)": difference_text(self.first.interval),
            "with fresh seeds": difference_text(self.fresh.interval),
            "came again": "yes" if self.again else "no",
        }

    def to_dict(self) -> dict[str, Any]:
        values = {"first": self.first.interval.value, "fresh": self.fresh.interval.value}
        return {"arm": self.first.arm, "steps": self.budget, **values, "p": self.fresh.p, "again": self.again}


def repeated_verdicts(first: Comparison, fresh: Comparison) -> list[RepeatedVerdict]:
    """The settled differences of a study beside those of its fresh seeds."""
    return [
        RepeatedVerdict(one, other, other.settled and one.interval.value * other.interval.value > 0)
        for one, other in zip(first.differences, fresh.differences, strict=True)
        if one.settled
    ]


def repetition_sentence(verdicts: list[RepeatedVerdict], seeds: int) -> list[str]:
    """How many verdicts came again, and which did not, in one sentence; empty if none was repeated."""
    if not verdicts:
        return []
    lost = [one.name for one in verdicts if not one.again]
    without = f", but not {', '.join(lost)}" if lost else ""
    count = f"{len(verdicts) - len(lost)} of {counted(len(verdicts), 'verdicts')}"
    return [f"Repeated with {spelled(seeds)} fresh seeds, {count} came again{without}."]
