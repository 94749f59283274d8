"""Global tokens: the first few see all and are seen by all, so that two layers carry anything anywhere.

i sees j  iff  i < tokens  or  j < tokens          (arXiv 2004.05150; arXiv 2007.14062, internal construction)
"""

from dataclasses import dataclass

from torch import Tensor

from anyformer.core import Count, Marks, MaskRule


@dataclass(frozen=True, kw_only=True)
class GlobalTokens(MaskRule, kind="global_tokens"):
    """The first tokens see all and are seen by all; the others see only them. Combine it with a local rule by `or`."""

    perspective = "efficiency"
    symmetric = True

    tokens: Count = 1
    """Number of global tokens, counted in blocks."""
    block: Count = 1
    """Tokens per block."""

    def allows(self, q: Marks, k: Marks) -> Tensor:
        first = self.tokens * self.block
        return (q.position < first) | (k.position < first)

    def pairs(self, q_len: int, k_len: int) -> int:
        hubs = min(self.tokens * self.block, k_len)
        hub_queries = max(hubs - (k_len - q_len), 0)
        return hub_queries * k_len + (q_len - hub_queries) * hubs

    @classmethod
    def examples(cls) -> "tuple[GlobalTokens, ...]":
        return (cls(tokens=5), cls(tokens=2, block=3))
