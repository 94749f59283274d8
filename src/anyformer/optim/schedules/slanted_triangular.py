"""A short linear warm-up and a long linear decay, never to zero.

p = step / cut before the cut, then 1 - (step - cut) / (total - cut) ; f = (1 + p (ratio - 1)) / ratio
(arXiv 1801.06146, eq. 3)
"""

from dataclasses import dataclass
from typing import Annotated

from anyformer.core import Range
from anyformer.optim.optimizer import ScheduleSpec, Span, progress, span_steps


@dataclass(frozen=True, kw_only=True)
class SlantedTriangular(ScheduleSpec, kind="slanted_triangular"):
    """Short linear warm-up, then a long linear decay to a fraction of the peak: for fine-tuning, as in ULMFiT."""

    warmup: Span = 0.1
    """Length of the linear warm-up: steps if 1 or more, a fraction of the run if below 1."""
    ratio: Annotated[float, Range(low=1.0)] = 32.0
    """Peak rate divided by the smallest rate, which is used at the start and at the end."""

    def factor(self, step: int, total: int) -> float:
        cut = span_steps(self.warmup, total)
        height = (step / cut if step < cut else 1.0) * (1 - progress(step, cut, total))
        return (1 + height * (self.ratio - 1)) / self.ratio
