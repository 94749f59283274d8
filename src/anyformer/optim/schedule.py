"""The base of every schedule: a pure function from the step to a factor on the peak learning rate.

Steps count from 0, the first update. A schedule has no state, so a resumed run needs none.
"""

from dataclasses import dataclass, fields
from typing import Annotated

from anyformer.core import Range, Spec
from anyformer.errors import Problem, SpecError

Span = Annotated[float, Range(low=0.0)]
"""A duration: a number of steps if 1 or more, a fraction of the run if below 1."""
FIRST = 0.5
"""Step used for the first update during warm-up instead of 0, at which the rate would be 0."""


@dataclass(frozen=True, kw_only=True)
class ScheduleSpec(Spec):
    """How the learning rate changes over a run."""

    def check(self) -> None:
        for field in fields(self):
            span = getattr(self, field.name)
            if field.type == Span and span >= 1 and span != int(span):
                text = f"must be a whole number of steps, or a fraction of the run below 1, got {span!r}."
                raise SpecError(problems=[Problem(field.name, text)])

    def factor(self, step: int, total: int) -> float:
        """The factor on the peak rate, 0 to 1, of update `step` out of `total`; the first step is 0."""
        raise NotImplementedError


def span_steps(span: float, total: int) -> int:
    """A span as a number of steps, in a run of `total` steps."""
    return round(span if span >= 1 else span * total)


def ramp(step: int, warmup: int) -> float:
    """Linear warm-up: step / warmup, then 1 from step `warmup` on. Step 0 gets half the factor of step 1: at a rate
    of 0 the first update would change nothing."""
    return max(step, FIRST) / warmup if step < warmup else 1.0


def progress(step: int, start: int, end: int) -> float:
    """The fraction of the way from `start` to `end` at a step, clamped to 0 to 1; 1 after an empty interval begins."""
    return min(1.0, max(0.0, (step - start) / max(1, end - start)))
