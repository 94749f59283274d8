"""Nucleus sampling: the smallest set of most likely tokens whose probabilities sum to p          (arXiv 1904.09751)"""

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
    """Keeps the smallest set of most likely tokens that has probability p."""

    p: Share = 0.9
    """Probability that the kept tokens reach; 1 keeps all tokens."""

    def apply(self, scores: Tensor, seen: Tensor | None) -> Tensor:
        ordered, tokens = scores.sort(descending=True, stable=True)
        probabilities = ordered.softmax(-1)
        beyond = probabilities.cumsum(-1) - probabilities >= self.p  # the tokens before reach p
        beyond[..., 0] = False
        return scores.masked_fill(torch.empty_like(beyond).scatter(-1, tokens, beyond), -math.inf)
