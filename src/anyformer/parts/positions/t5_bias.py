"""T5's relative bias: distances fall into buckets, each with a learned number for every head.

score_ij = scale q_i . k_j + b_h[bucket(j - i)]          (arXiv 1910.10683, section 2.1)
Half of the buckets hold one distance each, the others grow with its logarithm; an encoder has half for each side.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core import Bias, Borrowed, Count, Fill, Heads, Marks, Position, PositionSpec, Range, Site, Table
from anyformer.errors import SpecError
from anyformer.ops.devices import at_least_float32
from anyformer.ops.distance_buckets import bucket_table, check_buckets


@dataclass(frozen=True, kw_only=True)
class T5Bias(PositionSpec, kind="t5_bias"):
    """A learned number for each head and bucket of distances, added to the scores."""

    buckets: Annotated[int, Range(low=4)] = 32
    """Rows of the table; an encoder uses half of them for each side."""
    max_distance: Count = 128
    """All distances from here on fall into the last bucket."""
    share: str = "t5_bias"
    """Layers of a stack with the same tag share one table; empty: each layer has its own."""

    def check(self) -> None:
        check_buckets(self.buckets, self.max_distance)

    def build(self, site: Site, heads: Heads) -> "T5BiasModule":
        return T5BiasModule(self, site, heads)


class T5BiasModule(Position):
    bucket: Tensor
    """Bucket of each offset from -max_distance to max_distance; farther ones share the outermost."""

    def __init__(self, spec: T5Bias, site: Site, heads: Heads):
        super().__init__()
        self.buckets, self.reach, self.two_sided = spec.buckets, spec.max_distance, not site.causal
        if spec.share:
            self.table = site.share(spec.share, lambda: Table(spec.buckets, heads.number, role="position"))
        else:
            self.unshared = Table(spec.buckets, heads.number, role="position")
            self.table = Borrowed(self.unshared)
        shape = tuple(self.table.module.weight.shape)
        if shape != (spec.buckets, heads.number):
            raise SpecError(
                f"share={spec.share!r}: a table of {shape[0]} buckets for {shape[1]} heads cannot serve {spec.buckets} "
                f"buckets and {heads.number} heads. Give these layers another tag."
            )
        self.register_buffer("bucket", torch.empty(2 * self.reach + 1, dtype=torch.long), persistent=False)

    def init(self, fill: Fill) -> None:
        self.bucket.copy_(bucket_table(self.buckets, self.reach, self.two_sided))

    def bias(self, q: Tensor, k: Tensor, q_marks: Marks, k_marks: Marks) -> Bias:
        q_at, k_at = (marks.position.expand(q.shape[0], -1) for marks in (q_marks, k_marks))
        # at least single precision: the gradients of all pairs with one offset are summed in it
        by_offset = F.embedding(self.bucket, self.table.module.weight).T  # [h, 2 reach + 1]
        by_offset, reach = by_offset.to(at_least_float32(q)), self.reach

        def dense() -> Tensor:
            offset = k_marks.as_keys().position - q_marks.as_queries().position  # [b t s]
            rows = (offset.clamp(-reach, reach) + reach)[:, None].expand(-1, by_offset.shape[0], -1, -1)
            # gather, not an index: the backward of an index sorts all pairs on a GPU
            return by_offset[None, :, None].expand(*rows.shape[:3], -1).gather(-1, rows).type_as(q)

        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score + by_offset[h, (k_at[b, j] - q_at[b, i]).clamp(-reach, reach) + reach]

        return Bias(dense, score_mod)
