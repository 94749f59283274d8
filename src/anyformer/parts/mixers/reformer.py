"""Reformer: attention inside the buckets of a locality-sensitive hash, with one projection for queries and keys.

bucket_r(x) = argmax [x R_r ; -x R_r] ;  y_i = sum_r sum_j e^(q_i . k_j) v_j / sum_r sum_j e^(q_i . k_j) ,
k_j = q_j / |q_j| ,  over the nearest tokens j of i's bucket in each round r                          (arXiv 2001.04451)
The product with itself is always the largest: a token sees itself only if it sees no other, as in the paper, or always.
The rotations R are drawn once from the seed of the model. Not chunks of the sorted tokens but ranks in a bucket decide
which tokens are near, so that the result does not depend on the future, and decoding step by step gives the same.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from anyformer.core import Call, Count, Fill, Linear, Out, Part, PartSpec, Site, Tap
from anyformer.core.frame import Frame, Memory
from anyformer.errors import SpecError
from anyformer.ops.attention.call import KeyValueCache
from anyformer.ops.attention.hashed import (
    Weighted,
    attend_pairs,
    attend_sorted,
    hash_buckets,
    sorted_pairs,
    visible_rounds,
)
from anyformer.ops.devices import at_least_float32, no_autocast


@dataclass(frozen=True, kw_only=True)
class Reformer(PartSpec, kind="reformer"):
    """Attention among similar tokens only: those that a locality-sensitive hash puts into one bucket."""

    perspective = "efficiency"

    heads: Count = 4
    """Number of heads."""
    buckets: Count = 16
    """Buckets of each round: 1 or an even number."""
    rounds: Count = 2
    """Independent hashes: similar tokens that one of them separates may meet in another."""
    window: Count = 64
    """Tokens of its bucket that a token sees in each round, the nearest ones; in an encoder on each side."""
    itself: Literal["alone", "always"] = "alone"
    """When a token sees itself: only if it sees no other token, or always."""

    def check(self) -> None:
        if self.buckets > 1 and self.buckets % 2:
            raise SpecError(f"buckets={self.buckets} must be 1 or even: each direction has an opposite.")

    def build(self, site: Site) -> "ReformerPart":
        return ReformerPart(self, site)

    @classmethod
    def examples(cls) -> "tuple[Reformer, ...]":
        return (
            cls(buckets=2, window=4),
            cls(buckets=2, rounds=1, window=16, itself="always"),
            cls(heads=2, buckets=1, rounds=1, window=3),
        )


class HashedCache(NamedTuple):
    """Keys and values of all tokens so far, and their buckets."""

    tokens: KeyValueCache
    buckets: KeyValueCache
    """Bucket numbers [b slots h r] as keys, and values without channels."""


class ReformerPart(Part):
    rotations: Float[Tensor, "h c r n"]
    """Half of the directions of the buckets of each round; not learned."""

    def __init__(self, spec: Reformer, site: Site):
        super().__init__()
        self.h, self.c, self.causal = spec.heads, site.head_width(spec.heads), site.causal
        self.buckets, self.rounds, self.window, self.itself = spec.buckets, spec.rounds, spec.window, spec.itself
        self.width = site.width or site.dim
        self.qv = Linear(site.dim, (site.dim,) * 2, role=("query", "value"), heads=self.h)
        self.out = Linear(site.dim, self.width, role="out")
        self.register_buffer("rotations", torch.empty(self.h, self.c, self.rounds, self.buckets // 2))
        self.meetings = Tap()  # rounds in which a query sees a key, [b h t s]

    def init(self, fill: Fill) -> None:
        self.rotations.copy_(torch.randn(self.rotations.shape, generator=fill.rng("rotations")))

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> HashedCache:
        tokens = KeyValueCache.empty(batch, max_len, self.h, self.c, self.out.weight)
        buckets = tokens.k.new_zeros((*tokens.k.shape[:3], self.rounds), dtype=torch.float32)
        return HashedCache(tokens, KeyValueCache(buckets, buckets[..., :0].clone(), tokens.filled.clone()))

    def forward(self, x: Tensor, frame: Frame, state: HashedCache | None = None) -> Out:
        q, v = self.qv(x).unflatten(-1, (2 * self.h, self.c)).chunk(2, dim=2)  # [b t h c]
        with no_autocast(x):
            q, v = q.to(at_least_float32(x)), v.to(at_least_float32(x))
            buckets = hash_buckets(q.detach(), self.rotations.to(q.dtype))
            k = F.normalize(q, dim=-1)
            if state is not None:
                seen = self._attend_to_state(q, k, v, buckets, frame, state)
            elif self.meetings.captured or x.shape[1] <= self.window:
                seen = self._attend_to_row(q, k, v, buckets, frame)
            else:
                buckets = _by_document(buckets, self.buckets, frame)
                seen = attend_sorted(q, k, v, buckets, self.window, self.causal)
            y = self._with_itself(seen, (q * k).sum(-1), v)
        return Out(self.out(y.flatten(2).to(x.dtype)), state)

    def _attend_to_row(self, q: Tensor, k: Tensor, v: Tensor, buckets: Tensor, frame: Frame) -> Weighted:
        place = torch.arange(q.shape[1], device=q.device)
        allowed = torch.ones(1, 1, 1, dtype=torch.bool, device=q.device)
        if frame.segments is not None:
            allowed = allowed & (frame.segments[:, :, None] == frame.segments[:, None])
        if frame.valid is not None:
            allowed = allowed & frame.valid[:, None]
        offset = (place[None] - place[:, None])[None]
        rounds = visible_rounds(buckets, buckets, offset, allowed, self.window, self.causal)
        return attend_pairs(q, k, v, self.meetings(rounds))

    def _attend_to_state(
        self, q: Tensor, k: Tensor, v: Tensor, buckets: Tensor, frame: Frame, state: HashedCache
    ) -> Weighted:
        keys = state.tokens.append(k, v, frame)
        filled = state.buckets.append(buckets.float(), v[..., :0], frame)
        positions = frame.positions_for(q.flatten(2))
        offset = keys.marks.position[:, None] - positions[..., None]
        allowed = keys.valid if keys.valid is not None else torch.ones_like(keys.marks.position, dtype=torch.bool)
        rounds = visible_rounds(buckets, filled.k.long(), offset, allowed[:, None], self.window, self.causal)
        return attend_pairs(q, keys.k.to(q.dtype), keys.v.to(q.dtype), self.meetings(rounds))

    def _with_itself(self, seen: Weighted, score: Tensor, v: Tensor) -> Tensor:
        """The quotient of both sums, after a token itself was added where that is due."""
        if self.itself == "alone":
            alone = (seen.weight == 0)[..., None]
            return torch.where(alone, v, seen.values / seen.weight[..., None].masked_fill(alone, 1.0))
        peak = torch.maximum(seen.peak, score.detach())
        others, itself = (seen.peak - peak).exp()[..., None], self.rounds * (score - peak).exp()[..., None]
        return (seen.values * others + v * itself) / (seen.weight[..., None] * others + itself)

    def core_flops(self, call: Call) -> tuple[int, int]:
        heads, c = call.batch * self.h, self.c
        hashing = 2 * heads * c * call.length * self.rounds * (self.buckets // 2)  # has no gradient
        if call.past or call.length <= self.window:
            products = 4 * heads * c * call.length * (call.past + call.length)  # a score and a weighted value
        else:  # a weighted value and the sum of weights
            products = heads * (4 * c + 2) * self.rounds * sorted_pairs(call.length, self.window, self.causal)
        return hashing + products, 2 * products


def _by_document(buckets: Int[Tensor, "b t h r"], number: int, frame: Frame) -> Int[Tensor, "b t h r"]:
    """Bucket numbers that differ between documents; padding is in a bucket of its own."""
    if frame.segments is not None:
        buckets = buckets + (number + 1) * frame.segments[..., None, None]
    if frame.valid is not None:
        buckets = buckets.masked_fill(~frame.valid[..., None, None], -1)
    return buckets
