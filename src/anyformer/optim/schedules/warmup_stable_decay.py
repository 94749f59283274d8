"""Linear warm-up, a long plateau, and a decay at the end that can be begun at any time.

f(step) = step / warmup, then 1, then floor + (1 - floor) shape((step - start) / decay)          (arXiv 2404.06395)
shape(p) = 1 - p, or (1 + cos(pi p)) / 2, or 1 - sqrt(p) (arXiv 2405.18392)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import cos, pi, sqrt
from typing import Literal

from anyformer.core import Chance
from anyformer.optim.optimizer import ScheduleSpec, Span, progress, ramp, span_steps

_SHAPES: Mapping[str, Callable[[float], float]] = {
    "linear": lambda p: 1 - p,
    "cosine": lambda p: (1 + cos(pi * p)) / 2,
    "root": lambda p: 1 - sqrt(p),
}


@dataclass(frozen=True, kw_only=True)
class WarmupStableDecay(ScheduleSpec, kind="warmup_stable_decay"):
    """Linear warm-up, a constant rate, then a decay at the end."""

    warmup: Span = 0.02
    """Length of the linear warm-up: steps if 1 or more, a fraction of the run if below 1."""
    decay: Span = 0.2
    """Length of the final decay: steps if 1 or more, a fraction of the run if below 1."""
    shape: Literal["linear", "cosine", "root"] = "root"
    """Shape of the decay: linear, half a cosine wave, or 1 - sqrt."""
    floor: Chance = 0.0
    """Factor at the end of the run."""

    def factor(self, step: int, total: int) -> float:
        warmup = span_steps(self.warmup, total)
        start = max(warmup, total - span_steps(self.decay, total))
        left = _SHAPES[self.shape](progress(step, start, total))
        return ramp(step, warmup) * (self.floor + (1 - self.floor) * left)
