"""A constant rate after a linear warm-up.

f(step) = min(1, step / warmup)
"""

from dataclasses import dataclass

from anyformer.optim.optimizer import ScheduleSpec, Span, ramp, span_steps


@dataclass(frozen=True, kw_only=True)
class Constant(ScheduleSpec, kind="constant"):
    """Constant rate after an optional linear warm-up: common for fine-tuning."""

    warmup: Span = 0.0
    """Length of the linear warm-up: steps if 1 or more, a fraction of the run if below 1."""

    def factor(self, step: int, total: int) -> float:
        return ramp(step, span_steps(self.warmup, total))
