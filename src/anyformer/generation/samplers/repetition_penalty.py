"""Words of the prompt and of what was written become less likely: z / r where z > 0, z r below (arXiv 1909.05858)"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from anyformer.core import Positive
from anyformer.generation.samplers.sampler import Filter


@dataclass(frozen=True, kw_only=True)
class RepetitionPenalty(Filter, kind="repetition_penalty"):
    """Makes words that have occurred less likely, or with a penalty below 1 likelier."""

    tempered: ClassVar[bool] = False
    looks_back: ClassVar[bool] = True

    penalty: Positive = 1.2
    """Divides positive scores and multiplies negative ones; 1 changes nothing."""

    def apply(self, scores: Tensor, seen: Tensor | None) -> Tensor:
        assert seen is not None  # `looks_back` asked for it
        less = torch.where(scores < 0, scores * self.penalty, scores / self.penalty)
        return torch.where(seen, less, scores)
