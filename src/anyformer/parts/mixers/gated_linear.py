"""Gated linear attention: softmax-free attention whose memory is one [c, c] matrix for each head.

S_t = diag(a_t) S_{t-1} + k_t v_t^T ;  y_t = q_t S_t / sqrt(c) ;  a_t = sigmoid(W_a x_t)^(1/tau)     (arXiv 2312.06635)
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from anyformer.core import Call, Count, Frame, Linear, Memory, Out, Part, PartSpec, Positive, Site, Tap
from anyformer.ops.devices import at_least_float32
from anyformer.ops.recurrence.outer_product_scan import outer_scan, outer_scan_flops


@dataclass(frozen=True, kw_only=True)
class GatedLinear(PartSpec, kind="gated_linear"):
    """Linear attention that forgets, each channel at a pace that the token decides."""

    perspective = "efficiency"
    causal_only = True

    heads: Count = 4
    """Number of independent memories."""
    gate_temperature: Positive = 16.0
    """Divides the log-decay; larger remembers longer."""

    def build(self, site: Site) -> "GatedLinearPart":
        return GatedLinearPart(self, site)


class GatedLinearPart(Part):
    def __init__(self, spec: GatedLinear, site: Site):
        super().__init__()
        self.h, self.c, self.tau = spec.heads, site.head_width(spec.heads), spec.gate_temperature
        self.width = site.width or site.dim
        self.qkva = Linear(site.dim, (site.dim,) * 4, role=("query", "key", "value", "gate"), heads=self.h)
        self.out = Linear(site.dim, self.width, role="out")
        self.decay = Tap()

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> Tensor:
        return self.out.weight.new_zeros(batch, self.h, self.c, 1, self.c, dtype=at_least_float32(self.out.weight))

    def forward(self, x: Tensor, frame: Frame, state: Tensor | None = None) -> Out:
        begins = frame.document_starts(x, state)
        q, k, v, a = self.qkva(x).unflatten(-1, (4 * self.h, self.c)).chunk(4, dim=2)  # [b t h c]
        log_a = self.decay(F.logsigmoid(a.to(at_least_float32(x))) / self.tau)
        if frame.valid is not None:  # padding is an identity update: keep S, add nothing
            live = frame.valid[..., None, None]
            k, log_a = k * live, log_a * live
        y, state = outer_scan(q * self.c**-0.5, k, v, log_a, state, begins)
        return Out(self.out(y.flatten(2).to(x.dtype)), state)

    def core_flops(self, call: Call) -> tuple[int, int]:
        tokens, heads = (call.batch, call.length), (self.h, self.h)
        forward = outer_scan_flops(tokens, heads, (self.c, self.c), gated=True, stateful=call.past > 0)
        return forward, 2 * forward
