"""Relative position representations: a learned vector for each offset, seen by the scores and carried by the values.

score_ij = scale q_i . (k_j + a^K_r) ;  y_i = sum_j w_ij (v_j + a^V_r),  r = clip(j - i, -reach, reach)
All heads share the vectors (arXiv 1803.02155). They are multiplied first, then spread: no [t s c] tensor is made.
"""

from dataclasses import dataclass

from torch import Tensor

from anyformer.core import Bias, Call, Count, Heads, Marks, Position, PositionSpec, Site, param
from anyformer.ops.devices import at_least_float32


@dataclass(frozen=True, kw_only=True)
class Shaw(PositionSpec, kind="shaw"):
    """Learned vectors for near offsets, added to keys and values."""

    reach: Count = 16
    """Offsets beyond this distance share the outermost vector."""

    def build(self, site: Site, heads: Heads) -> "ShawModule":
        return ShawModule(self.reach, heads)


class ShawModule(Position):
    def __init__(self, reach: int, heads: Heads):
        super().__init__()
        self.reach, self.h, self.scale = reach, heads.number, heads.scale
        self.key_table = param((2 * reach + 1, heads.channels), "position")
        self.value_table = param((2 * reach + 1, heads.channels), "position")

    def bias(self, q: Tensor, k: Tensor, q_marks: Marks, k_marks: Marks) -> Bias:
        q_at, k_at = (marks.position.expand(q.shape[0], -1) for marks in (q_marks, k_marks))
        # at least single precision, here and below: the outermost rows sum over almost all keys
        by_offset = (q * self.scale @ self.key_table.T).to(at_least_float32(q)).transpose(1, 2)  # [b h t r]
        reach = self.reach

        def dense() -> Tensor:
            rows = self._rows(q_marks, k_marks).expand(*by_offset.shape[:3], -1)
            return by_offset.gather(-1, rows).type_as(q)

        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score + by_offset[b, h, i, (k_at[b, j] - q_at[b, i]).clamp(-reach, reach) + reach]

        return Bias(dense, score_mod)

    def values(self, weights: Tensor, q_marks: Marks, k_marks: Marks) -> Tensor:
        rows = self._rows(q_marks, k_marks).expand_as(weights)
        wide = weights.to(at_least_float32(weights))
        by_offset = wide.new_zeros(*weights.shape[:3], 2 * self.reach + 1).scatter_add(-1, rows, wide)  # [b h t r]
        return (by_offset.type_as(weights) @ self.value_table).transpose(1, 2)  # [b t h c]

    def head_flops(self, call: Call, keys: int) -> tuple[int, int]:
        products = 2 * call.batch * call.length * self.h * self.key_table.numel()
        return 2 * products, 4 * products

    def _rows(self, q_marks: Marks, k_marks: Marks) -> Tensor:
        offset = k_marks.as_keys().position - q_marks.as_queries().position
        return (offset.clamp(-self.reach, self.reach) + self.reach)[:, None]  # [b 1 t s]
