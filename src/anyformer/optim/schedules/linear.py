"""Linear warm-up, then linear decay.

f(step) = step / warmup, then 1 - (1 - floor) (step - warmup) / (total - warmup)          (arXiv 1810.04805)
"""

from dataclasses import dataclass

from anyformer.core import Chance
from anyformer.optim.optimizer import ScheduleSpec, Span, progress, ramp, span_steps


@dataclass(frozen=True, kw_only=True)
class LinearSchedule(ScheduleSpec, kind="linear"):
    """Linear warm-up, then linear decay, as for BERT."""

    warmup: Span = 0.1
    """Length of the linear warm-up: steps if 1 or more, a fraction of the run if below 1."""
    floor: Chance = 0.0
    """Factor at the end of the run."""

    def factor(self, step: int, total: int) -> float:
        warmup = span_steps(self.warmup, total)
        return ramp(step, warmup) * (1 - (1 - self.floor) * progress(step, warmup, total))
