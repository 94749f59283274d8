"""A sliding window: a token sees its neighbours, |i - j| < size          (arXiv 2004.05150)

With block > 1 distances are counted in blocks of tokens, as BigBird's windows are (arXiv 2007.14062).
"""

from dataclasses import dataclass

from torch import Tensor

from anyformer.core import Count, Marks, MaskRule
from anyformer.core.masks import Band


@dataclass(frozen=True, kw_only=True)
class Window(MaskRule, kind="window"):
    """A sliding window: a token sees itself and size - 1 neighbours on each side (before it, in a causal stack)."""

    perspective = "efficiency"
    symmetric = True

    size: Count = 256
    """Reach of the window, the token itself included, in blocks."""
    block: Count = 1
    """Tokens per block."""

    def allows(self, q: Marks, k: Marks) -> Tensor:
        distance = q.position // self.block - k.position // self.block
        return distance.abs() < self.size

    @property
    def band(self) -> Band | None:
        return Band(self.size - 1, self.size - 1) if self.block == 1 else None  # blocks begin at fixed places

    def pairs(self, q_len: int, k_len: int) -> int:
        first, block, reach = k_len - q_len, self.block, self.size * self.block
        total = 0
        for start in range(first // block * block, k_len, block):
            queries = min(start + block, k_len) - max(start, first)
            total += queries * (min(start + reach, k_len) - max(start + block - reach, 0))
        return total

    @classmethod
    def examples(cls) -> "tuple[Window, ...]":
        return (cls(size=3), cls(size=2, block=3))
