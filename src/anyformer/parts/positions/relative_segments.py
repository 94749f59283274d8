"""XLNet's relative segment encodings: whether two tokens have the same type, compared with the query.

score_ij = scale q_i . k_j + scale (q_i + b) . s_same  if type_i = type_j,  else with s_other
s_same, s_other and b are learned for each head (arXiv 1906.08237, section 2.5). Only equality of types counts, so that
there may be any number of them. It is added to a scheme of positions, which has no part in it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.core import Bias, Call, Heads, Marks, Position, PositionSpec, Site, param
from anyformer.errors import SpecError, at
from anyformer.ops.devices import at_least_float32


@dataclass(frozen=True, kw_only=True)
class RelativeSegments(PositionSpec, kind="relative_segments"):
    """A learned vector for tokens of the query's type (`frame.types`) and one for the others, beside positions."""

    position: PositionSpec | None = None
    """The scheme of positions that acts inside attention, such as xl; none if not given."""

    def build(self, site: Site, heads: Heads) -> "RelativeSegmentsModule":
        with at("position"):
            inner = self.position.build(site, heads) if self.position else Position()
            if self.position and (not inner.acts_inside() or inner.has_values):
                raise SpecError(f"{self.position.kind} does not act on scores. Use xl, rope, alibi or t5_bias.")
        return RelativeSegmentsModule(inner, heads)


class RelativeSegmentsModule(Position):
    def __init__(self, inner: Position, heads: Heads):
        super().__init__()
        self.inner, self.longest = inner, inner.longest
        self.h, self.c, self.scale = heads.number, heads.channels, heads.scale
        self.query_bias = param((self.h, self.c), "bias")
        self.segment_bias = param((2 * self.h, self.c), "position")
        """s_same of all heads, then s_other."""

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        return self.inner.rotate(x, positions)

    def bias(self, q: Tensor, k: Tensor, q_marks: Marks, k_marks: Marks) -> Bias:
        inner = self.inner.bias(q, k, q_marks, k_marks)
        table = self.segment_bias.unflatten(0, (2, self.h)).type_as(q)  # [2 h c]
        query = (q + self.query_bias.type_as(q)) * self.scale
        # at least single precision: the gradients of all keys of a type are summed in it
        by_segment = torch.einsum("bthc,nhc->bhtn", query, table).to(at_least_float32(q))
        q_types, k_types = self._types(q, k, q_marks, k_marks)

        def dense() -> Tensor:
            other = (q_types[:, :, None] != k_types[:, None, :]).long()[:, None]  # [b 1 t s]
            term = by_segment.gather(-1, other.expand(*by_segment.shape[:3], -1)).type_as(q)
            return term if inner is None else term + inner.dense()

        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            score = score if inner is None else inner.score_mod(score, b, h, i, j)
            return score + by_segment[b, h, i, (q_types[b, i] != k_types[b, j]).long()]

        return Bias(dense, score_mod)

    @staticmethod
    def _types(q: Tensor, k: Tensor, q_marks: Marks, k_marks: Marks) -> tuple[Tensor, Tensor]:
        """Types of queries [b t] and keys [b s]; without types all tokens have the same one."""
        if (q_marks.type is None) != (k_marks.type is None):
            raise SpecError("relative_segments: a decoding state does not keep frame.types. Leave them out.")
        types = []
        for x, marks in ((q, q_marks), (k, k_marks)):
            none = torch.zeros_like(marks.position) if marks.type is None else marks.type
            types.append(none.expand(x.shape[0], -1))
        return types[0], types[1]

    def head_flops(self, call: Call, keys: int) -> tuple[int, int]:
        forward, backward = self.inner.head_flops(call, keys)
        products = 2 * call.batch * call.length * self.segment_bias.numel()
        return forward + products, backward + 2 * products
