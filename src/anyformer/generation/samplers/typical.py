"""Locally typical words: those whose surprise is nearest to the expected one, until they have the mass asked for.

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
    """Keeps the words about as surprising as one expects, neither the dullest nor the strangest."""

    mass: Annotated[float, Range(above=0.0, below=1.0)] = 0.9
    """Probability that the kept words reach together."""

    def apply(self, scores: Tensor, seen: Tensor | None) -> Tensor:
        logs = scores.log_softmax(-1)
        shares = logs.exp()
        expected = -(logs * shares).nansum(-1, keepdim=True)  # 0 log 0 = 0
        words = (-logs - expected).abs().argsort(dim=-1, stable=True)
        ordered = shares.gather(-1, words)
        beyond = ordered.cumsum(-1) - ordered >= self.mass
        beyond[..., 0] = False
        return scores.masked_fill(torch.empty_like(beyond).scatter(-1, words, beyond), -math.inf)
