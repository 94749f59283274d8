"""Bucketed relative keys: a learned vector for each head and bucket of distances, compared with the query.

score_ij = scale q_i . (k_j + a_h[bucket(j - i)])          no term for the values
Shaw's relative keys (arXiv 1803.02155) over T5's buckets of distances (arXiv 1910.10683), with a table for each layer.
A choice of the modification study's code, which calls it relative attention by context (arXiv 2102.11972).
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from anyformer.core import Bias, Call, Count, Fill, Heads, Marks, Position, PositionSpec, Range, Site, param
from anyformer.ops.devices import at_least_float32
from anyformer.ops.distance_buckets import bucket_table, check_buckets


@dataclass(frozen=True, kw_only=True)
class BucketedKeys(PositionSpec, kind="bucketed_keys"):
    """A learned vector for each head and bucket of distances, added to the keys and not to the values."""

    buckets: Annotated[int, Range(low=4)] = 32
    """Vectors per head; an encoder uses half of them for each side."""
    max_distance: Count = 128
    """All distances from here on fall into the last bucket."""

    def check(self) -> None:
        check_buckets(self.buckets, self.max_distance)

    def build(self, site: Site, heads: Heads) -> "BucketedKeysModule":
        return BucketedKeysModule(self, site, heads)


class BucketedKeysModule(Position):
    bucket: Tensor
    """Bucket of each offset from -max_distance to max_distance; farther ones share the outermost."""

    def __init__(self, spec: BucketedKeys, site: Site, heads: Heads):
        super().__init__()
        self.buckets, self.reach, self.two_sided = spec.buckets, spec.max_distance, not site.causal
        self.h, self.scale = heads.number, heads.scale
        self.table = param((heads.number * spec.buckets, heads.channels), "position")
        self.register_buffer("bucket", torch.empty(2 * self.reach + 1, dtype=torch.long), persistent=False)

    def init(self, fill: Fill) -> None:
        fill.by_role(self)
        self.bucket.copy_(bucket_table(self.buckets, self.reach, self.two_sided))

    def bias(self, q: Tensor, k: Tensor, q_marks: Marks, k_marks: Marks) -> Bias:
        q_at, k_at = (marks.position.expand(q.shape[0], -1) for marks in (q_marks, k_marks))
        table = self.table.unflatten(0, (self.h, self.buckets))  # [h n c]
        # at least single precision: the gradients of all keys in one bucket are summed in it
        by_bucket = torch.einsum("bthc,hnc->bhtn", q * self.scale, table.type_as(q)).to(at_least_float32(q))
        reach, bucket = self.reach, self.bucket

        def dense() -> Tensor:
            offset = k_marks.as_keys().position - q_marks.as_queries().position  # [b t s]
            columns = bucket[offset.clamp(-reach, reach) + reach][:, None].expand(*by_bucket.shape[:3], -1)
            return by_bucket.gather(-1, columns).type_as(q)

        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score + by_bucket[b, h, i, bucket[(k_at[b, j] - q_at[b, i]).clamp(-reach, reach) + reach]]

        return Bias(dense, score_mod)

    def head_flops(self, call: Call, keys: int) -> tuple[int, int]:
        products = 2 * call.batch * call.length * self.table.numel()
        return products, 2 * products
