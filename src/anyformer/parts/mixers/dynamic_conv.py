"""Dynamic convolution: a lightweight one whose kernel every token makes for itself.

u = a sigmoid(g), [a; g] = W_in x ;  v_{t,c} = sum_j softmax_j(W_h u_t) u_{t+j-p,c}, h the group of c ;  y = W_out v
(arXiv 1901.10430, eq. 5)          linear in the length, where attention would compare every token with every other
With `pointwise` a matrix with a bias mixes the channels of v before W_out, as in a separable convolution. The released
code of the modification study has it (arXiv 2102.11972).
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from anyformer.core import Count, Frame, Linear, Memory, Out, Part, PartSpec, Site, Tap
from anyformer.ops.convolution import Span, back_in_place, laid, left_behind, weighted


@dataclass(frozen=True, kw_only=True)
class DynamicConv(PartSpec, kind="dynamic_conv"):
    """A convolution of each channel by itself with a normalised kernel that is predicted from the token."""

    perspective = "efficiency"

    kernel: Count = 9
    """Kernel size in tokens."""
    heads: Count = 4
    """Groups of channels with one kernel each."""
    pointwise: bool = False
    """Mixes the channels by one more matrix, with a bias, between the convolution and the output projection."""

    @classmethod
    def examples(cls) -> "tuple[DynamicConv, ...]":
        return (cls(), cls(kernel=5, heads=2, pointwise=True))

    def build(self, site: Site) -> "DynamicConvPart":
        site.head_width(self.heads)  # raises SpecError unless the groups are equal
        return DynamicConvPart(self, site)


class DynamicConvPart(Part):
    def __init__(self, spec: DynamicConv, site: Site):
        super().__init__()
        self.span, self.heads = Span(spec.kernel, causal=site.causal), spec.heads
        self.inner = Linear(site.dim, (site.dim, site.dim), role=("in", "gate"))
        self.kernel = Linear(site.dim, spec.heads * spec.kernel, role="query")
        self.pointwise = Linear(site.dim, site.dim, role="in", bias=True) if spec.pointwise else None
        self.out = Linear(site.dim, site.dim, role="out")
        self.weights = Tap()

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> Tensor:
        return self.out.weight.new_zeros(batch, self.span.before, self.out.widths[0])

    def forward(self, x: Tensor, frame: Frame, state: Tensor | None = None) -> Out:
        row = laid(F.glu(self.inner(x), dim=-1), frame, self.span, state)
        tokens = row.x[:, row.x.shape[1] - row.length :]
        kernel = self.weights(self.kernel(tokens).unflatten(-1, (self.heads, -1)).softmax(-1))  # [b t h k]
        v = back_in_place(weighted(row, self.span, kernel), row)
        y = self.out(v if self.pointwise is None else self.pointwise(v))
        return Out(y, None if state is None else left_behind(row, state))
