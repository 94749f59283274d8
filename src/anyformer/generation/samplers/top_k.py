"""Top-k: z_i = -inf below the k-th largest          (arXiv 1805.04833)"""

import math
from dataclasses import dataclass

from torch import Tensor

from anyformer.core import Count
from anyformer.generation.samplers.sampler import Filter


@dataclass(frozen=True, kw_only=True)
class TopK(Filter, kind="top_k"):
    """Keeps the k most likely tokens."""

    k: Count = 50
    """Number of tokens to keep; tokens as likely as the k-th are kept as well."""

    def apply(self, scores: Tensor, seen: Tensor | None) -> Tensor:
        least = scores.topk(min(self.k, scores.shape[-1])).values[..., -1:]
        return scores.masked_fill(scores < least, -math.inf)
