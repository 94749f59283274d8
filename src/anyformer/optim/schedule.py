"""The base of every schedule: a pure function from step to the share of the peak learning rate.

Steps count from 0, the first update. Nothing is stored: a run that resumes asks again.
"""

from dataclasses import dataclass
from typing import Annotated

from anyformer.core import Range, Spec
from anyformer.errors import Problem, SpecError

Span = Annotated[float, Range(low=0.0)]
"""A stretch of a run: steps if it is 1 or more, a share of the run if it is below 1."""
FIRST = 0.5
"""Where the first update stands on the way up, instead of at 0."""


@dataclass(frozen=True, kw_only=True)
class ScheduleSpec(Spec):
    """How the learning rate changes over a run."""

    def factor(self, step: int, total: int) -> float:
        """The share of the peak rate, 0 to 1, that update `step` of `total` planned ones takes; step 0 is the first."""
        raise NotImplementedError


def span_steps(span: float, total: int) -> int:
    """A span in steps of a run of `total`."""
    return round(span if span >= 1 else span * total)


def check_span(name: str, span: float) -> None:
    """Raises SpecError for a number of steps that is not whole."""
    if span >= 1 and span != int(span):
        text = f"must be a whole number of steps, or a share of the run below 1, got {span!r}."
        raise SpecError(problems=[Problem(name, text)])


def ramp(step: int, warmup: int) -> float:
    """From step 1 in a straight line up to 1 at step `warmup`, and 1 from there on. Step 0 gets half of what step 1
    gets: at a rate of 0 the first update would change nothing."""
    return max(step, FIRST) / warmup if step < warmup else 1.0


def progress(step: int, start: int, end: int) -> float:
    """How far a step is from `start` to `end`, 0 to 1; a stretch without length is over when it begins."""
    return min(1.0, max(0.0, (step - start) / max(1, end - start)))
