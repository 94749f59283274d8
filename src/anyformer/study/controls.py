"""Controls of a study: comparisons whose outcome is known beforehand, which show whether the study can see it.

A study that does not find a difference that exists, or finds one that does not, says little about anything else. Each
control is a small study of two arms with the data, budget, tuning and seeds of the whole, trained before the arms. What
is known about other data is compared on those: `changes`.
"""

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from anyformer.core import Positive, Range, Spec
from anyformer.errors import SpecError
from anyformer.statistics.comparison import Difference
from anyformer.statistics.intervals import difference_text

TUNING = "study.tuning."


@dataclass(frozen=True, kw_only=True)
class Control(Spec):
    """Two arms of which one is known to be better, or which are known to be alike."""

    better: str = ""
    """Arm that is known to have the lower loss."""
    than: str = ""
    """Arm that is known to have the higher loss."""
    by: Annotated[float, Range(low=0.0)] = 0.0
    """Difference that is known at least: two arms that learn nothing may differ significantly, but hardly at all."""
    alike: tuple[str, ...] = ()
    """Two arms that are known to have the same loss, instead of `better` and `than`."""
    within: Positive = 0.02
    """Largest difference between the losses of arms that are alike."""
    changes: tuple[str, ...] = ()
    """Changes of the recipe for both arms, or of study.tuning, written as on the command line:
    "data.source.kind=associative_recall"."""

    def check(self) -> None:
        directed, tied = bool(self.better and self.than), len(self.alike) == 2
        if directed == tied or bool(self.better) != bool(self.than) or len(self.alike) not in (0, 2):
            raise SpecError('name two arms: better = "a" and than = "b", or alike = ["a", "b"].')
        if len({*self.pair}) == 1:
            raise SpecError(f"{self.pair[0]!r} is compared with itself. Name two arms.")
        for change in self.study_changes:
            if not change.startswith(TUNING):
                raise SpecError(f"changes: {change!r} cannot differ for a control; of the study only its tuning can.")

    @property
    def pair(self) -> tuple[str, str]:
        """The two arms, the one that the other is compared with first."""
        return (self.than, self.better) if self.better else (self.alike[0], self.alike[1])

    @property
    def study_changes(self) -> list[str]:
        """The changes of the settings of the study."""
        return [change for change in self.changes if change.startswith("study.")]

    @property
    def recipe_changes(self) -> list[str]:
        """The changes of the recipe."""
        return [change for change in self.changes if not change.startswith("study.")]

    @property
    def expected(self) -> str:
        """What is known, as a clause."""
        if self.better:
            least = f" by at least {self.by:g}" if self.by else ""
            return f"{self.better} has a lower loss than {self.than}{least}"
        return f"{self.alike[0]} and {self.alike[1]} differ by at most {self.within:g}"

    def passes(self, one: Difference) -> bool:
        """True if the difference of the second arm from the first is the known one.

        A known difference is significant, has the right sign, and its whole interval is at least as large as is known;
        of a tie the whole interval is within the limit.
        """
        low, high = one.interval.low, one.interval.high
        if low is None or high is None:
            return False
        if self.better:
            return one.settled and one.interval.value < 0 and (not self.by or high <= -self.by)
        return -self.within <= low and high <= self.within


class ControlOutcome(NamedTuple):
    """A control with the difference that was found."""

    name: str
    control: Control
    outcome: Difference

    @property
    def passed(self) -> bool:
        return self.control.passes(self.outcome)

    @property
    def measured(self) -> str:
        """The difference that was found: "glu - relu = -0.031 (-0.040 to -0.022)"."""
        first, second = self.control.pair
        return f"{second} - {first} = {difference_text(self.outcome.interval)}"

    def to_dict(self) -> dict[str, Any]:
        interval = self.outcome.interval
        numbers = {"mean": interval.value, "low": interval.low, "high": interval.high, "p": self.outcome.p}
        return {"name": self.name, "expected": self.control.expected, "passed": self.passed, "difference": numbers}


def controls_sentence(outcomes: list[ControlOutcome]) -> list[str]:
    """One sentence for controls that passed, and one for each that failed; empty without controls."""
    passed, failed = ([one.name for one in outcomes if one.passed], [one for one in outcomes if not one.passed])
    sentences = [
        f"Control {one.name} failed: it is known that {one.control.expected}, but here {one.measured}."
        for one in failed
    ]
    if failed:
        sentences.append("So this study cannot be trusted to see other differences.")
    return [*([f"Controls passed: {', '.join(passed)}."] if passed else []), *sentences]
