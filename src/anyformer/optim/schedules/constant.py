"""A constant rate after a linear warm-up.

f(step) = min(1, step / warmup)
"""

from dataclasses import dataclass

from anyformer.optim.schedule import ScheduleSpec, Span, check_span, ramp, span_steps


@dataclass(frozen=True, kw_only=True)
class Constant(ScheduleSpec, kind="constant"):
    """The same rate all the time, after a linear warm-up if asked: the usual one for fine-tuning."""

    warmup: Span = 0.0
    """Linear way up from 0: steps if 1 or more, a share of the run if below 1."""

    def check(self) -> None:
        check_span("warmup", self.warmup)

    def factor(self, step: int, total: int) -> float:
        return ramp(step, span_steps(self.warmup, total))
