"""The schedule of the original Transformer, named after its author.

rate(s) = dim^-0.5 min(s^-0.5, s warmup^-1.5) with s = step + 1          (arXiv 1706.03762, eq. 3)
Its peak, (dim warmup)^-0.5, is reached at s = warmup. Here as a factor on that peak: `peak` gives the paper's `lr`.
"""

from dataclasses import dataclass
from math import sqrt

from anyformer.optim.optimizer import ScheduleSpec, Span, span_steps


@dataclass(frozen=True, kw_only=True)
class Noam(ScheduleSpec, kind="noam"):
    """Linear warm-up, then inverse square root decay, as for the original Transformer."""

    warmup: Span = 4000.0
    """Length of the linear warm-up: steps if 1 or more, a fraction of the run if below 1."""

    def factor(self, step: int, total: int) -> float:
        count, warmup = step + 1, max(1, span_steps(self.warmup, total))
        return min(sqrt(warmup / count), count / warmup)

    def peak(self, dim: int, total: int = 1) -> float:
        """The peak learning rate of the paper for a model of this width."""
        return 1 / sqrt(dim * max(1, span_steps(self.warmup, total)))
