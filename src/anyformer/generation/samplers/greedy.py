"""Greedy decoding: the argmax of the scores."""

from dataclasses import dataclass

from torch import Tensor

from anyformer.generation.samplers.sampler import Filter, Sampler, filtered
from anyformer.ops.argmax import argmax


@dataclass(frozen=True, kw_only=True)
class Greedy(Sampler, kind="greedy"):
    """Picks the most likely token."""

    filters: tuple[Filter, ...] = ()
    """Filters that change the scores first, in this order."""

    @property
    def looks_back(self) -> bool:
        return any(each.looks_back for each in self.filters)

    @property
    def waits(self) -> bool:
        return any(each.waits for each in self.filters)

    @property
    def draws(self) -> bool:
        return False

    def pick(self, logits: Tensor, uniform: Tensor, seen: Tensor | None = None) -> Tensor:
        scores = filtered(self.filters, logits, seen, tempered=False)
        return argmax(filtered(self.filters, scores, seen, tempered=True))
