"""Repetition penalty: of tokens that have occurred, z becomes z / r if z > 0, else z r          (arXiv 1909.05858)"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from anyformer.core import Positive
from anyformer.generation.samplers.sampler import Filter


@dataclass(frozen=True, kw_only=True)
class RepetitionPenalty(Filter, kind="repetition_penalty"):
    """Makes tokens of the prompt and of the output less likely, or more likely with a penalty below 1."""

    tempered: ClassVar[bool] = False
    looks_back: ClassVar[bool] = True

    penalty: Positive = 1.2
    """Divides positive logits and multiplies negative ones; 1 changes nothing."""

    def apply(self, scores: Tensor, seen: Tensor | None) -> Tensor:
        assert seen is not None  # because looks_back is True
        penalised = torch.where(scores < 0, scores * self.penalty, scores / self.penalty)
        return torch.where(seen, penalised, scores)
