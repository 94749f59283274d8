"""The fixed pattern of the Sparse Transformer: a token sees its own block, and the last tokens of every block.

i sees j  iff  floor(i / size) = floor(j / size)  or  j mod size >= size - summaries     (arXiv 1904.10509, section 4.3)
The last tokens of a block have seen all of it, so that two layers carry anything to any later token. The paper gives
the two halves to different heads or layers; here one rule has both, as its merged head does.
"""

from dataclasses import dataclass

from torch import Tensor

from anyformer.core import Count, Marks, MaskRule
from anyformer.errors import SpecError


@dataclass(frozen=True, kw_only=True)
class Fixed(MaskRule, kind="fixed"):
    """A token's own block, and the last few tokens of every block: the Sparse Transformer's fixed pattern."""

    perspective = "efficiency"

    size: Count = 128
    """Tokens per block; about the square root of the length is cheapest."""
    summaries: Count = 8
    """Tokens at the end of each block that tokens of all blocks see."""

    def check(self) -> None:
        if self.summaries > self.size:
            raise SpecError(f"summaries={self.summaries} must be at most size={self.size}, the tokens of a block.")

    def allows(self, q: Marks, k: Marks) -> Tensor:
        summary = k.position % self.size >= self.size - self.summaries
        return (q.position // self.size == k.position // self.size) | summary

    def pairs(self, q_len: int, k_len: int) -> int:
        first, size, total = k_len - q_len, self.size, 0
        for start in range(first // size * size, k_len, size):
            stop = min(start + size, k_len)
            elsewhere = self._summaries_before(k_len) - (self._summaries_before(stop) - self._summaries_before(start))
            total += (stop - max(start, first)) * (stop - start + elsewhere)
        return total

    def _summaries_before(self, position: int) -> int:
        """Number of summary tokens among the first `position` tokens."""
        rest = position % self.size
        return position // self.size * self.summaries + max(rest - (self.size - self.summaries), 0)

    @classmethod
    def examples(cls) -> "tuple[Fixed, ...]":
        return (cls(size=5, summaries=2),)
