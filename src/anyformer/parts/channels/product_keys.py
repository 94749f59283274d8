"""Product-key memory: each token reads the best few out of a large table of values, without scoring all of their keys.

q_h = norm(W_h x) = [a, b] ;  s_ij = a . A_hi + b . B_hj ;  y = sum_h sum_{(i,j) in top-k of s} softmax(s)_ij V_ij
                                                                                                  (arXiv 1907.05242)
A key is a pair of half-keys, one out of each of two sets: n + n scores decide between n^2 keys. The k best pairs are
among the k^2 pairs of the k best halves of either set, because the score of a pair is a sum.
The paper normalises queries over the batch; here each query is normalised alone, so that a row never depends on others.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core import Call, Count, Frame, Linear, NormSpec, Out, Part, PartSpec, Site, Table, Tap, param
from anyformer.errors import SpecError
from anyformer.parts.norms.layer import LayerNorm


@dataclass(frozen=True, kw_only=True)
class ProductKeys(PartSpec, kind="product_keys"):
    """A memory in place of a feed-forward net: a token reads the best few out of keys^2 learned values."""

    perspective = "efficiency"

    keys: Count = 512
    """Half-keys in each of the two sets of a head; the memory has keys^2 values, which all heads read."""
    heads: Count = 4
    """Queries of a token, each with half-keys of its own. What they read is added."""
    key_dim: Count = 256
    """Channels of a query; one half is compared with one set, the other half with the other."""
    top: Count = 32
    """Values that a head reads for a token (k)."""
    norm: NormSpec = LayerNorm()
    """Normalises each query over its channels."""

    def check(self) -> None:
        if self.key_dim % 2:
            raise SpecError(f"key_dim={self.key_dim} must be even: a query has two halves. Use {self.key_dim + 1}.")
        if self.top > self.keys:
            raise SpecError(f"top={self.top} must be at most keys={self.keys}, the half-keys of a set.")
        if self.norm.limits:
            raise SpecError(f"norm: {self.norm.kind} depends on other tokens. Use layer, rms or scale.")

    def build(self, site: Site) -> "ProductKeysPart":
        return ProductKeysPart(self, site)

    @classmethod
    def examples(cls) -> "tuple[ProductKeys, ...]":
        return cls(keys=4, key_dim=16, top=2), cls(keys=4, heads=1, key_dim=8, top=4)


class ProductKeysPart(Part):
    def __init__(self, spec: ProductKeys, site: Site):
        super().__init__()
        self.h, self.keys, self.key_dim, self.top = spec.heads, spec.keys, spec.key_dim, spec.top
        self.query = Linear(site.dim, self.h * self.key_dim, role="query", heads=self.h)
        self.norm = spec.norm.build(replace(site, dim=self.key_dim))
        self.half_keys = param((2 * self.h * self.keys, self.key_dim // 2), "key")
        self.roles["half_keys"] = (("key", self.keys),) * (2 * self.h)  # each set is a matrix of its own
        self.values = Table(self.keys**2, site.dim, role="embed")
        self.slots, self.weights = Tap(), Tap()

    def forward(self, x: Tensor, frame: Frame, state: tuple[()] | None = None) -> Out:
        q = self.norm(self.query(x).unflatten(-1, (self.h, self.key_dim)), Frame())  # [b t h c]: each query alone
        scores, slots = self._best_pairs(q.unflatten(-1, (2, -1)))
        weights, slots = self.weights(scores.softmax(-1)), self.slots(slots)  # [b t h k]
        # One row of values at a time is read and added up: [b t h k d] is never in memory.
        table, rows = self.values.weight, slots.flatten(2).flatten(0, 1)  # [b*t h*k]
        y = F.embedding_bag(rows, table, per_sample_weights=weights.reshape(rows.shape).type_as(table), mode="sum")
        return Out(y.view_as(x).type_as(x), state)

    def _best_pairs(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and table rows [b t h k] of the best keys of queries in halves [b t h 2 c]."""
        sets = q.flatten(0, 1).flatten(1, 2).transpose(0, 1)  # [h*2 b*t c]: one product for each set of half-keys
        scores = torch.bmm(sets, self.half_keys.unflatten(0, (-1, self.keys)).mT).transpose(0, 1)  # [b*t h*2 n]
        scores, halves = scores.unflatten(0, q.shape[:2]).unflatten(2, (-1, 2)).topk(self.top, dim=-1)  # [b t h 2 k]
        candidates = scores[..., 0, :, None] + scores[..., 1, None, :]  # [b t h k k]
        slots = self.keys * halves[..., 0, :, None] + halves[..., 1, None, :]
        best, places = candidates.flatten(-2).topk(self.top, dim=-1)
        return best, slots.flatten(-2).gather(-1, places)

    def core_flops(self, call: Call) -> tuple[int, int]:
        """Scores of all half-keys. What is read from the table is looked up, as in an embedding, and not counted."""
        forward = 2 * call.batch * call.length * self.half_keys.numel()
        return forward, 2 * forward
