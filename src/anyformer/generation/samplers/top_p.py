"""The nucleus: the smallest set of likeliest words whose probabilities reach p          (arXiv 1904.09751)"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from anyformer.core import Range
from anyformer.generation.samplers.sampler import Filter

Share = Annotated[float, Range(above=0.0, high=1.0)]


@dataclass(frozen=True, kw_only=True)
class TopP(Filter, kind="top_p"):
    """Keeps the fewest likeliest words that together have probability p."""

    p: Share = 0.9
    """Probability to be reached; 1 keeps all words."""

    def apply(self, scores: Tensor, seen: Tensor | None) -> Tensor:
        ordered, words = scores.sort(descending=True, stable=True)
        shares = ordered.softmax(-1)
        beyond = shares.cumsum(-1) - shares >= self.p  # what comes before is enough already
        beyond[..., 0] = False
        return scores.masked_fill(torch.empty_like(beyond).scatter(-1, words, beyond), -math.inf)
