"""A word at random: p = softmax(z / T) over what the filters leave. T = 0 is greedy."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from anyformer.core import Range
from anyformer.generation.samplers.sampler import Filter, Sampler, filtered
from anyformer.ops.argmax import argmax


@dataclass(frozen=True, kw_only=True)
class Sample(Sampler, kind="sample"):
    """Draws a word at random, by its probability."""

    temperature: Annotated[float, Range(low=0.0)] = 1.0
    """Divides the scores: below 1 surer, above 1 bolder, 0 takes the likeliest word."""
    filters: tuple[Filter, ...] = ()
    """Change the scores before, one after the other: penalties those of the model, truncations the divided ones."""

    @property
    def looks_back(self) -> bool:
        return any(each.looks_back for each in self.filters)

    @property
    def waits(self) -> bool:
        return any(each.waits for each in self.filters)

    def pick(self, logits: Tensor, uniform: Tensor, seen: Tensor | None = None) -> Tensor:
        scores = filtered(self.filters, logits.float(), seen, tempered=False)
        if self.temperature == 0.0:
            return argmax(filtered(self.filters, scores, seen, tempered=True))
        scores = filtered(self.filters, scores / self.temperature, seen, tempered=True)
        # in double: a word without probability has no room between two sums, however many words there are
        heights = scores.double().softmax(-1).cumsum(-1)
        return torch.searchsorted(heights, uniform[:, None].double() * heights[:, -1:], right=True)[:, 0]
