"""Local blocks: the sequence is cut into blocks of equal length and a token sees its own block only.

i sees j  iff  floor(i / size) = floor(j / size)          (arXiv 1801.10198, section 4.2.4)
"""

from dataclasses import dataclass

from torch import Tensor

from anyformer.core import Count, Marks, MaskRule


@dataclass(frozen=True, kw_only=True)
class BlockLocal(MaskRule, kind="block_local"):
    """Consecutive blocks of equal length, each of which sees only itself."""

    perspective = "efficiency"
    symmetric = True

    size: Count = 256
    """Tokens per block."""

    def allows(self, q: Marks, k: Marks) -> Tensor:
        return q.position // self.size == k.position // self.size

    def pairs(self, q_len: int, k_len: int) -> int:
        first, total = k_len - q_len, 0
        for start in range(first // self.size * self.size, k_len, self.size):
            stop = min(start + self.size, k_len)
            total += (stop - max(start, first)) * (stop - start)
        return total

    @classmethod
    def examples(cls) -> "tuple[BlockLocal, ...]":
        return (cls(size=6),)
