"""Linear attention: a product of features instead of a softmax, so that keys and values can be summed before queries.

y_i = phi(q_i) sum_j phi(k_j) v_j^T / phi(q_i) sum_j phi(k_j) ,  phi(x) = elu(x) + 1          (arXiv 2006.16236)
Sums over the past are a state of one [c, c] matrix for each head; a column of ones among the values makes the divisor.
"""

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from anyformer.core import Call, Count, Frame, Linear, Memory, Out, Part, PartSpec, Site, Tap
from anyformer.ops.devices import at_least_float32
from anyformer.ops.feature_attention import all_sums, past_sums, sums_flops

_EPSILON = 1e-6


@dataclass(frozen=True, kw_only=True)
class LinearAttention(PartSpec, kind="linear_attention"):
    """Attention by a product of positive features: linear in the length, a state of fixed size when decoding."""

    perspective = "efficiency"

    heads: Count = 4
    """Number of heads."""
    feature: Literal["elu", "relu"] = "elu"
    """What makes queries and keys positive: elu(x) + 1 or relu(x)."""

    def build(self, site: Site) -> "LinearAttentionPart":
        return LinearAttentionPart(self, site)

    @classmethod
    def examples(cls) -> "tuple[LinearAttention, ...]":
        return (cls(), cls(heads=2, feature="relu"))


class LinearAttentionPart(Part):
    def __init__(self, spec: LinearAttention, site: Site):
        super().__init__()
        self.h, self.c, self.causal = spec.heads, site.head_width(spec.heads), site.causal
        self.width, self.feature = site.width or site.dim, spec.feature
        self.qkv = Linear(site.dim, (site.dim,) * 3, role=("query", "key", "value"), heads=self.h)
        self.out = Linear(site.dim, self.width, role="out")
        self.divisor = Tap()

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> Tensor:
        dtype = at_least_float32(self.out.weight)
        return self.out.weight.new_zeros(batch, self.h, self.c, 1, self.c + 1, dtype=dtype)

    def forward(self, x: Tensor, frame: Frame, state: Tensor | None = None) -> Out:
        q, k, v = self.qkv(x).unflatten(-1, (3 * self.h, self.c)).chunk(3, dim=2)  # [b t h c]
        q, k = (F.elu(y) + 1 if self.feature == "elu" else F.relu(y) for y in (q, k))
        if frame.valid is not None:  # padding adds nothing to any sum
            k = k * frame.valid[..., None, None]
        if self.causal:
            y, state = past_sums(q, k, v, state, frame.document_starts(x, state))
        else:
            y = all_sums(q, k, v, frame.segments)
        y = y[..., :-1] / (self.divisor(y[..., -1:]) + _EPSILON)
        return Out(self.out(y.flatten(2).to(x.dtype)), state)

    def core_flops(self, call: Call) -> tuple[int, int]:
        forward = sums_flops(call, self.h, (self.c, self.c), self.causal)
        return forward, 2 * forward
