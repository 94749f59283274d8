"""The strided pattern: what is near, and every stride-th token however far.

i sees j  iff  |i - j| < stride  or  (i - j) mod stride = 0          (arXiv 1904.10509, section 4.3)
The paper gives the two halves to different heads or layers; here one rule has both, as its merged head does.
"""

from dataclasses import dataclass

from torch import Tensor

from anyformer.core import Count, Marks, MaskRule


@dataclass(frozen=True, kw_only=True)
class Strided(MaskRule, kind="strided"):
    """The nearest tokens, and every stride-th token however far."""

    perspective = "efficiency"
    symmetric = True

    stride: Count = 128
    """Reach of the near part and step of the far part; about the square root of the length is cheapest."""

    def allows(self, q: Marks, k: Marks) -> Tensor:
        distance = (q.position - k.position).abs()
        return (distance < self.stride) | (distance % self.stride == 0)

    def pairs(self, q_len: int, k_len: int) -> int:
        total = 0
        for i in range(k_len - q_len, k_len):
            near = min(i + self.stride, k_len) - max(i - self.stride + 1, 0)
            total += near + i // self.stride + (k_len - 1 - i) // self.stride
        return total

    @classmethod
    def examples(cls) -> "tuple[Strided, ...]":
        return (cls(stride=4),)
