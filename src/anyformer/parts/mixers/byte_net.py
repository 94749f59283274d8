"""ByteNet's residual block: a dilated convolution at half the width, between two matrices.

y = W_2 relu(N_3(conv_r(relu(N_2(W_1 relu(x))))))          N_1 is the norm of the branch (arXiv 1610.10099, section 3.6)
With r = 1, 2, 4, 8, 16 and k = 3, five layers see 62 tokens beyond their own.
"""

from dataclasses import dataclass, replace

from torch import Tensor

from anyformer.core import Count, Frame, Linear, Memory, NormSpec, Out, Part, PartSpec, Site, Tap
from anyformer.errors import at
from anyformer.ops.convolution import Span, back_in_place, laid, left_behind, windows
from anyformer.parts.norms.layer import LayerNorm


@dataclass(frozen=True, kw_only=True)
class ByteNet(PartSpec, kind="byte_net"):
    """A dilated convolution at half the width between two matrices: the residual block of ByteNet."""

    kernel: Count = 3
    """Kernel size in tokens."""
    dilation: Count = 1
    """Distance between the tokens of the kernel."""
    hidden: Count | None = None
    """Width inside; half of dim if not given."""
    norm: NormSpec | None = None
    """Normalises before the convolution and after it; `layer` if not given."""

    def build(self, site: Site) -> "ByteNetPart":
        return ByteNetPart(self, site)


class ByteNetPart(Part):
    def __init__(self, spec: ByteNet, site: Site):
        super().__init__()
        self.span, width = Span(spec.kernel, spec.dilation, site.causal), spec.hidden or max(1, site.dim // 2)
        self.down = Linear(site.dim, width, role="in", bias=True)
        self.taps = Linear(spec.kernel * width, width, role="in", bias=True)
        self.up = Linear(width, site.dim, role="out", bias=True)
        norm, inside = spec.norm or LayerNorm(), replace(site, dim=width)
        with at("norm"):
            self.before, self.after = norm.build(inside), norm.build(inside)
        self.hidden = Tap()

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> Tensor:
        return self.taps.weight.new_zeros(batch, self.span.before, self.taps.widths[0])

    def forward(self, x: Tensor, frame: Frame, state: Tensor | None = None) -> Out:
        u = self.before(self.down(x.relu()), frame).relu()
        row = laid(u, frame, self.span, state)
        u = back_in_place(self.taps(windows(row, self.span)), row)
        y = self.up(self.hidden(self.after(u, frame).relu()))
        return Out(y, None if state is None else left_behind(row, state))
