"""Words at least p times as likely as the likeliest          (arXiv 2407.01082)"""

import math
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from anyformer.core import Range
from anyformer.generation.samplers.sampler import Filter


@dataclass(frozen=True, kw_only=True)
class MinP(Filter, kind="min_p"):
    """Keeps the words that are at least p times as likely as the likeliest."""

    p: Annotated[float, Range(low=0.0, high=1.0)] = 0.05
    """Share of the largest probability."""

    def apply(self, scores: Tensor, seen: Tensor | None) -> Tensor:
        shares = scores.softmax(-1)
        return scores.masked_fill(shares < self.p * shares.amax(-1, keepdim=True), -math.inf)
