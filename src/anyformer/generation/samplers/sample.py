"""Sampling: a token drawn from p = softmax(z / T) over the tokens that the filters leave. T = 0 is greedy."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from anyformer.core import Range
from anyformer.generation.samplers.sampler import Filter, Sampler, filtered
from anyformer.ops.argmax import argmax

FINEST = torch.finfo(torch.float32).eps
"""Below this temperature the division of logits overflows; the most likely token is picked instead."""


@dataclass(frozen=True, kw_only=True)
class Sample(Sampler, kind="sample"):
    """Draws a token by its probability."""

    temperature: Annotated[float, Range(low=0.0)] = 1.0
    """Divides the logits: below 1 more certain, above 1 more varied; 0, or below 1e-7, picks the most likely token."""
    filters: tuple[Filter, ...] = ()
    """Filters that change the scores first, in this order: penalties before the division, truncations after it."""

    @property
    def looks_back(self) -> bool:
        return any(each.looks_back for each in self.filters)

    @property
    def waits(self) -> bool:
        return any(each.waits for each in self.filters)

    @property
    def draws(self) -> bool:
        return self.temperature >= FINEST

    def pick(self, logits: Tensor, uniform: Tensor, seen: Tensor | None = None) -> Tensor:
        scores = filtered(self.filters, logits.float(), seen, tempered=False)
        if self.temperature < FINEST:
            return argmax(filtered(self.filters, scores, seen, tempered=True))
        scores = filtered(self.filters, scores / self.temperature, seen, tempered=True)
        # in double precision a token of probability 0 is never drawn, however many tokens there are
        cumulative = scores.double().softmax(-1).cumsum(-1)
        return torch.searchsorted(cumulative, uniform[:, None].double() * cumulative[:, -1:], right=True)[:, 0]
