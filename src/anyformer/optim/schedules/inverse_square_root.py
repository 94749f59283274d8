"""A constant rate, then inverse square root decay.

f(step) = min(1, step / warmup) sqrt(hold / max(step, hold))
T5 holds for 10^4 steps without a warm-up; with `lr` = 0.01 that is 1 / sqrt(max(step, 10^4))   (arXiv 1910.10683)
"""

from dataclasses import dataclass
from math import sqrt

from anyformer.optim.optimizer import ScheduleSpec, Span, ramp, span_steps


@dataclass(frozen=True, kw_only=True)
class InverseSquareRoot(ScheduleSpec, kind="inverse_square_root"):
    """Constant rate, then inverse square root decay, as for T5; does not depend on the length of the run."""

    warmup: Span = 0.0
    """Length of the linear warm-up: steps if 1 or more, a fraction of the run if below 1."""
    hold: Span = 10_000.0
    """Step at which the decay begins: steps if 1 or more, a fraction of the run if below 1."""

    def factor(self, step: int, total: int) -> float:
        hold = max(1, span_steps(self.hold, total))
        return ramp(step, span_steps(self.warmup, total)) * sqrt(hold / max(step, hold))
