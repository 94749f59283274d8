"""A gated convolution: one half of the output gates the other.

[a; g] = b + sum_{j<k} W_j x_{t + j r - before} ;  y_t = a sigmoid(g)      (ConvS2S, arXiv 1705.03122; arXiv 1612.08083)
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from anyformer.core import Count, Frame, Linear, Memory, Out, Part, PartSpec, Site, Tap
from anyformer.ops.convolution import Span, back_in_place, laid, left_behind, windows


@dataclass(frozen=True, kw_only=True)
class ConvGLU(PartSpec, kind="conv_glu"):
    """A convolution whose output is gated by half of itself: the layer of ConvS2S."""

    kernel: Count = 3
    """Kernel size in tokens."""
    dilation: Count = 1
    """Distance between the tokens of the kernel."""
    bias: bool = True
    """Adds a learned bias."""

    def build(self, site: Site) -> "ConvGLUPart":
        return ConvGLUPart(self, site)


class ConvGLUPart(Part):
    def __init__(self, spec: ConvGLU, site: Site):
        super().__init__()
        self.span = Span(spec.kernel, spec.dilation, site.causal)
        self.taps = Linear(spec.kernel * site.dim, (site.dim,) * 2, role=("in", "gate"), bias=spec.bias)
        self.out = Tap()

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> Tensor:
        return self.taps.weight.new_zeros(batch, self.span.before, self.taps.widths[0])

    def forward(self, x: Tensor, frame: Frame, state: Tensor | None = None) -> Out:
        row = laid(x, frame, self.span, state)
        y = self.out(back_in_place(F.glu(self.taps(windows(row, self.span)), dim=-1), row))
        return Out(y, None if state is None else left_behind(row, state))
