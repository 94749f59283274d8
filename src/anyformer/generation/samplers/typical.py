"""Locally typical sampling: tokens whose surprisal is nearest to the entropy, until they have the given mass.

|-log p_i - H(p)| ascending          (arXiv 2202.00666)
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from anyformer.core import Range
from anyformer.generation.samplers.sampler import Filter


@dataclass(frozen=True, kw_only=True)
class Typical(Filter, kind="typical"):
    """Keeps the tokens whose surprisal is nearest to the entropy of the distribution."""

    mass: Annotated[float, Range(above=0.0, below=1.0)] = 0.9
    """Probability that the kept tokens reach together."""

    def apply(self, scores: Tensor, seen: Tensor | None) -> Tensor:
        logs = scores.log_softmax(-1)
        probabilities = logs.exp()
        entropy = -(logs * probabilities).nansum(-1, keepdim=True)  # 0 log 0 = 0
        tokens = (-logs - entropy).abs().argsort(dim=-1, stable=True)
        ordered = probabilities.gather(-1, tokens)
        beyond = ordered.cumsum(-1) - ordered >= self.mass
        beyond[..., 0] = False
        return scores.masked_fill(torch.empty_like(beyond).scatter(-1, tokens, beyond), -math.inf)
