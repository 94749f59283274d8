"""A window with gaps: as many neighbours as a plain one, `step` times as far.

i sees j  iff  |i - j| < size step  and  (i - j) mod step = 0          (arXiv 2004.05150, section 3.1)
"""

from dataclasses import dataclass

from torch import Tensor

from anyformer.core import Count, Marks, MaskRule


@dataclass(frozen=True, kw_only=True)
class Dilated(MaskRule, kind="dilated"):
    """A sliding window with gaps: a token sees itself and every step-th of its neighbours."""

    perspective = "efficiency"
    symmetric = True

    size: Count = 256
    """Neighbours on each side, the token itself included."""
    step: Count = 2
    """Distance between the tokens that are seen; 1 is a plain window."""

    def allows(self, q: Marks, k: Marks) -> Tensor:
        distance = (q.position - k.position).abs()
        return (distance < self.size * self.step) & (distance % self.step == 0)

    def pairs(self, q_len: int, k_len: int) -> int:
        reach, total = self.size - 1, q_len
        for i in range(k_len - q_len, k_len):
            total += min(reach, i // self.step) + min(reach, (k_len - 1 - i) // self.step)
        return total

    @classmethod
    def examples(cls) -> "tuple[Dilated, ...]":
        return (cls(size=3, step=2),)
