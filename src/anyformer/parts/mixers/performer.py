"""Performer: softmax attention estimated by positive orthogonal random features (FAVOR+), at a cost linear in length.

exp(q . k) = E[f(q) . f(k)] ,  f(x)_j = exp(w_j . x - |x|^2 / 2) / sqrt(m) ,  w_j ~ N(0, I)          (arXiv 2009.14794)
y_i = f(q_i) sum_j f(k_j) v_j^T / f(q_i) sum_j f(k_j) ,  with q and k divided by c^(1/4)
Blocks of c vectors w are orthogonal to each other, each with the length of a normal vector: the mean stays that of
independent ones, and the variance falls. Factors that cancel in the quotient (|q|^2, m) are left out.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from anyformer.core import Call, Count, Fill, Frame, Linear, Memory, Out, Part, PartSpec, Site, Tap
from anyformer.ops.devices import at_least_float32, no_autocast
from anyformer.ops.feature_attention import all_sums, past_sums, sums_flops

_SMALLEST = 1e-30
_LARGEST_EXPONENT = 60.0
"""Sums of many features of this exponent still fit float32."""


@dataclass(frozen=True, kw_only=True)
class Performer(PartSpec, kind="performer"):
    """Softmax attention estimated by random features (FAVOR+): linear in the length, a state of fixed size."""

    perspective = "efficiency"

    heads: Count = 4
    """Number of heads."""
    features: Count = 128
    """Random features of each head; the error falls with their square root, cost and state grow with them."""

    def build(self, site: Site) -> "PerformerPart":
        return PerformerPart(self, site)

    @classmethod
    def examples(cls) -> "tuple[Performer, ...]":
        return (cls(features=16), cls(heads=2, features=20))


class PerformerPart(Part):
    directions: Float[Tensor, "h m c"]
    """The vectors w of each head: drawn once from the seed of the model, and not learned."""

    def __init__(self, spec: Performer, site: Site):
        super().__init__()
        self.h, self.c, self.m, self.causal = spec.heads, site.head_width(spec.heads), spec.features, site.causal
        self.width = site.width or site.dim
        self.qkv = Linear(site.dim, (site.dim,) * 3, role=("query", "key", "value"), heads=self.h)
        self.out = Linear(site.dim, self.width, role="out")
        self.register_buffer("directions", torch.empty(self.h, self.m, self.c))
        self.divisor = Tap()

    def init(self, fill: Fill) -> None:
        self.directions.copy_(orthogonal_directions(self.h, self.m, self.c, fill.rng("directions")))

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> Tensor:
        dtype = at_least_float32(self.out.weight)
        return self.out.weight.new_zeros(batch, self.h, self.m, 1, self.c + 1, dtype=dtype)

    def forward(self, x: Tensor, frame: Frame, state: Tensor | None = None) -> Out:
        qkv = self.qkv(x).unflatten(-1, (3 * self.h, self.c))
        with no_autocast(x):  # features span more orders of magnitude than half precision
            q, k, v = qkv.to(at_least_float32(x)).chunk(3, dim=2)  # [b t h c]
            q, k = self._query_features(q), self._key_features(k)
            if frame.valid is not None:  # padding adds nothing to any sum
                k = k * frame.valid[..., None, None]
            if self.causal:
                y, state = past_sums(q, k, v, state, frame.document_starts(x, state))
            else:
                y = all_sums(q, k, v, frame.segments)
            y = y[..., :-1] / self.divisor(y[..., -1:]).clamp(min=_SMALLEST)
        return Out(self.out(y.flatten(2).to(x.dtype)), state)

    def _query_features(self, q: Tensor) -> Tensor:
        """Features of queries [b t h m], the largest of each query 1: a common factor cancels."""
        exponents = self._project(q)
        return (exponents - exponents.detach().amax(-1, keepdim=True)).exp()

    def _key_features(self, k: Tensor) -> Tensor:
        """Features of keys [b t h m]. No key enters those of another, so that they are the same step by step."""
        bound = self.directions.to(k.dtype).square().sum(-1).amax(-1, keepdim=True) / 2  # w.k - |k|^2/2 <= |w|^2/2
        half_square = k.square().sum(-1, keepdim=True) / (2 * self.c**0.5)
        exponents: Tensor = self._project(k) - half_square - (bound - _LARGEST_EXPONENT).clamp(min=0)
        return exponents.exp()

    def _project(self, x: Tensor) -> Tensor:
        return torch.einsum("bthc,hmc->bthm", x * self.c**-0.25, self.directions.to(x.dtype))

    def core_flops(self, call: Call) -> tuple[int, int]:
        projections = 4 * call.batch * call.length * self.h * self.m * self.c  # of queries and keys; w does not learn
        sums = sums_flops(call, self.h, (self.m, self.c), self.causal)
        return projections + sums, projections + 2 * sums


def orthogonal_directions(heads: int, number: int, channels: int, rng: torch.Generator) -> Float[Tensor, "h m c"]:
    """Normal vectors for each head, of which every `channels` in a row are orthogonal to each other."""
    blocks = -(-number // channels)
    normal = torch.randn(heads, blocks, channels, channels, generator=rng)
    q, r = torch.linalg.qr(normal)
    q = q * r.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]  # uniform over all rotations
    lengths = torch.randn(heads, blocks * channels, channels, generator=rng).norm(dim=-1, keepdim=True)
    directions: Tensor = q.mT.flatten(1, 2) * lengths
    return directions[:, :number]
