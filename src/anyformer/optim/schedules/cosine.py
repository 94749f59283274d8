"""Linear warm-up, then half a cosine wave down.

f(step) = step / warmup, then floor + (1 - floor) (1 + cos(pi (step - warmup) / (total - warmup))) / 2
(arXiv 1608.03983, without restarts)
"""

from dataclasses import dataclass
from math import cos, pi

from anyformer.core import Chance
from anyformer.optim.optimizer import ScheduleSpec, Span, progress, ramp, span_steps


@dataclass(frozen=True, kw_only=True)
class Cosine(ScheduleSpec, kind="cosine"):
    """Linear warm-up, then cosine decay, as for GPT."""

    warmup: Span = 0.02
    """Length of the linear warm-up: steps if 1 or more, a fraction of the run if below 1."""
    floor: Chance = 0.1
    """Factor at the end of the run."""

    def factor(self, step: int, total: int) -> float:
        warmup = span_steps(self.warmup, total)
        wave = (1 + cos(pi * progress(step, warmup, total))) / 2
        return ramp(step, warmup) * (self.floor + (1 - self.floor) * wave)
