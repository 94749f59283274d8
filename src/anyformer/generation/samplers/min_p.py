"""Min-p: tokens at least p times as likely as the most likely one          (arXiv 2407.01082)"""

import math
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from anyformer.core import Range
from anyformer.generation.samplers.sampler import Filter


@dataclass(frozen=True, kw_only=True)
class MinP(Filter, kind="min_p"):
    """Keeps the tokens that are at least p times as likely as the most likely one."""

    p: Annotated[float, Range(low=0.0, high=1.0)] = 0.05
    """Smallest probability that is kept, as a fraction of the largest."""

    def apply(self, scores: Tensor, seen: Tensor | None) -> Tensor:
        probabilities = scores.softmax(-1)
        return scores.masked_fill(probabilities < self.p * probabilities.amax(-1, keepdim=True), -math.inf)
