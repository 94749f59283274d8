"""Transformer-XL's relative positions: sinusoids of the distance, seen through the query and by themselves.

score_ij = scale [(q_i + u) . k_j + (q_i + v) . W_r R_{i-j}],  R_n = [sin(w n) | cos(w n)], w_k = base^(-2k/d)
u, v are learned for each head; XLNet has them for each layer, Transformer-XL shares them       (arXiv 1901.02860)
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.core.fields import Positive
from anyformer.core.frame import Marks
from anyformer.core.module import Borrowed, Call, Linear, Module, Site, param
from anyformer.core.part import Bias, Heads, Position, PositionSpec
from anyformer.errors import SpecError
from anyformer.ops.devices import at_least_float32


@dataclass(frozen=True, kw_only=True)
class XL(PositionSpec, kind="xl"):
    """Sinusoids of the distance, projected for each head and compared with the query."""

    base: Positive = 10_000.0
    """The slowest wave has a period of about 2 pi base tokens."""
    share: str | None = None
    """Layers of a stack with the same tag share one u and one v; each layer has its own if not given."""

    def build(self, site: Site, heads: Heads) -> "XLModule":
        if site.dim % 2:
            raise SpecError(f"xl makes pairs of sines and cosines; dim={site.dim} is odd.")
        return XLModule(self, site, heads)


class QueryBiases(Module):
    """Learned biases of all queries of a head: u for contents, v for distances."""

    def __init__(self, heads: Heads):
        super().__init__()
        self.u = param((heads.number, heads.channels), "bias")
        self.v = param((heads.number, heads.channels), "bias")


class XLModule(Position):
    def __init__(self, spec: XL, site: Site, heads: Heads):
        super().__init__()
        self.base, self.dim, self.causal = spec.base, site.dim, site.causal
        self.h, self.c, self.scale = heads.number, heads.channels, heads.scale
        self.project = Linear(site.dim, heads.number * heads.channels, role="position", heads=heads.number)
        if spec.share:
            self.leanings = site.share(spec.share, lambda: QueryBiases(heads))
        else:
            self.unshared = QueryBiases(heads)
            self.leanings = Borrowed(self.unshared)
        shape = tuple(self.leanings.module.u.shape)
        if shape != heads[:2]:
            raise SpecError(
                f"share={spec.share!r}: u and v of {shape[0]} heads of {shape[1]} channels cannot serve {heads.number} "
                f"heads of {heads.channels}. Give these layers another tag."
            )

    def bias(self, q: Tensor, k: Tensor, q_marks: Marks, k_marks: Marks) -> Bias:
        # a rule that uses a prefix or an order may allow later tokens in a causal stack too
        ahead = not self.causal or q_marks.prefix is not None or q_marks.order is not None
        high = k.shape[1] - 1
        low = -high if ahead else 0
        # at least single precision: the gradients of all queries that see a key are summed in it
        by_key = self._score_keys(k).to(at_least_float32(k))  # [b h s]
        by_distance = self._score_distances(q, torch.arange(low, high + 1, device=q.device))  # [b h t n]
        q_at, k_at = (marks.position.expand(q.shape[0], -1) for marks in (q_marks, k_marks))

        def column(distance: Tensor) -> Tensor:
            return distance.clamp(low, high) - low  # what is cut off, no mask lets through

        def dense() -> Tensor:
            distance = q_marks.as_queries().position - k_marks.as_keys().position  # [b t s]
            columns = column(distance)[:, None].expand(*by_distance.shape[:3], -1)
            return (by_distance.gather(-1, columns) + by_key[:, :, None]).type_as(q)

        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score + by_distance[b, h, i, column(q_at[b, i] - k_at[b, j])] + by_key[b, h, j]

        return Bias(dense, score_mod)

    def _score_keys(self, k: Tensor) -> Tensor:
        """scale u . k_j; grouped query heads share keys, each with its own u."""
        u = self.leanings.module.u.unflatten(0, (k.shape[2], -1)) * self.scale  # [g h/g c]
        return torch.einsum("bsgc,gnc->bgns", k, u.type_as(k)).flatten(1, 2)

    def _score_distances(self, q: Tensor, distances: Tensor) -> Tensor:
        """scale (q_i + v) . W_r R_n for every distance n."""
        frequency = self.base ** (torch.arange(0, -self.dim, -2, device=q.device) / self.dim)
        angle = distances[:, None] * frequency  # [n d/2]
        waves = torch.cat((angle.sin(), angle.cos()), dim=-1).type_as(q)
        keys = self.project(waves).unflatten(-1, (self.h, self.c))  # [n h c]
        query = (q + self.leanings.module.v.type_as(q)) * self.scale
        return torch.einsum("bthc,nhc->bhtn", query, keys)

    def head_flops(self, call: Call, keys: int) -> tuple[int, int]:
        distances = keys if self.causal else 2 * keys - 1
        forward = 2 * call.batch * self.h * self.c * (keys + call.length * distances)
        return forward, 2 * forward
