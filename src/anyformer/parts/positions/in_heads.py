"""Position vectors added to queries, keys and values themselves, not to what they are projected from.

q_i + p_i, k_j + p_j, v_j + p_j; the last as sum_j w_ij (v_j + p_j) = sum_j w_ij v_j + sum_j w_ij p_j
Adding before the projections gives W (x + p) instead; with W = I both are the same.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.core import Call, Heads, Marks, Position, PositionSpec, Site
from anyformer.errors import SpecError
from anyformer.parts.positions.sinusoidal import Sinusoidal


@dataclass(frozen=True, kw_only=True)
class InHeads(PositionSpec, kind="in_heads"):
    """Adds position vectors to the queries, keys and values of each head."""

    position: PositionSpec
    """Where the position vectors come from: a scheme that adds them to the token vectors."""

    def build(self, site: Site, heads: Heads) -> "InHeadsModule":
        if heads.key_heads is not None:
            both = f"a vector for each of {heads.number} heads, the keys have {heads.key_heads}"
            raise SpecError(f"in_heads has {both}. Leave out kv_heads.")
        return InHeadsModule(self.position.build_vectors(site, heads), heads)

    @classmethod
    def examples(cls) -> "tuple[InHeads, ...]":
        return (cls(position=Sinusoidal()),)


class InHeadsModule(Position):
    def __init__(self, inner: Position, heads: Heads):
        super().__init__()
        self.inner, self.longest = inner, inner.longest
        self.h, self.c = heads.number, heads.channels

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self._vectors(x, positions)

    def values(self, weights: Tensor, q_marks: Marks, k_marks: Marks) -> Tensor:
        return torch.einsum("bhts,bshc->bthc", weights, self._vectors(weights, k_marks.position))

    def head_flops(self, call: Call, keys: int) -> tuple[int, int]:
        forward = 2 * call.batch * call.length * keys * self.h * self.c
        learns = any(parameter.requires_grad for parameter in self.inner.parameters())
        return forward, forward * (2 if learns else 1)

    def _vectors(self, like: Tensor, positions: Tensor) -> Tensor:
        nothing = like.new_zeros(*positions.shape, self.h * self.c)
        vectors: Tensor = self.inner.embed(nothing, positions).unflatten(-1, (self.h, self.c))  # [b s h c]
        return vectors
