"""Lightweight convolution: each channel by itself, with a normalised kernel that groups of channels share.

u = a sigmoid(g), [a; g] = W_in x ;  v_{t,c} = sum_j softmax(w_h)_j u_{t+j-p,c}, h the group of c ;  y = W_out v
(arXiv 1901.10430, eq. 4)          3 d^2 + h k weights
With `pointwise` a matrix with a bias mixes the channels of v before W_out, as in a separable convolution. The released
code of the modification study has it (arXiv 2102.11972).
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from anyformer.core import Count, Frame, Linear, Memory, Out, Part, PartSpec, Site, Tap, param
from anyformer.ops.convolution import Span, back_in_place, laid, left_behind, weighted


@dataclass(frozen=True, kw_only=True)
class LightweightConv(PartSpec, kind="lightweight_conv"):
    """A convolution of each channel by itself, its kernel normalised and shared by groups of channels."""

    perspective = "efficiency"

    kernel: Count = 9
    """Kernel size in tokens."""
    heads: Count = 4
    """Groups of channels with one kernel each."""
    pointwise: bool = False
    """Mixes the channels by one more matrix, with a bias, between the convolution and the output projection."""

    @classmethod
    def examples(cls) -> "tuple[LightweightConv, ...]":
        return (cls(), cls(kernel=5, heads=2, pointwise=True))

    def build(self, site: Site) -> "LightweightConvPart":
        site.head_width(self.heads)  # raises SpecError unless the groups are equal
        return LightweightConvPart(self, site)


class LightweightConvPart(Part):
    def __init__(self, spec: LightweightConv, site: Site):
        super().__init__()
        self.span = Span(spec.kernel, causal=site.causal)
        self.inner = Linear(site.dim, (site.dim, site.dim), role=("in", "gate"))
        self.kernel = param((spec.heads, spec.kernel), "in")
        self.pointwise = Linear(site.dim, site.dim, role="in", bias=True) if spec.pointwise else None
        self.out = Linear(site.dim, site.dim, role="out")
        self.weights = Tap()

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> Tensor:
        return self.out.weight.new_zeros(batch, self.span.before, self.out.widths[0])

    def forward(self, x: Tensor, frame: Frame, state: Tensor | None = None) -> Out:
        row = laid(F.glu(self.inner(x), dim=-1), frame, self.span, state)
        kernel = self.weights(self.kernel.softmax(-1))  # [h k]
        v = back_in_place(weighted(row, self.span, kernel), row)
        y = self.out(v if self.pointwise is None else self.pointwise(v))
        return Out(y, None if state is None else left_behind(row, state))
