"""A convolution over the sequence: every token and its neighbours through one matrix.

y_t = phi(b + sum_{j<k} W_j x_{t + j r - before})      k d^2 + d weights; causal, or as far to either side
Dilated by r = 1, k, k^2, .. from layer to layer, L layers see k^L tokens: O(log T) steps between any two.
"""

from dataclasses import dataclass

from torch import Tensor

from anyformer.core import Count, Frame, Linear, Memory, Out, Part, PartSpec, Site, Tap
from anyformer.ops.activations import ACTIVATION_FUNCTIONS, Activation
from anyformer.ops.convolution import Span, back_in_place, laid, left_behind, windows


@dataclass(frozen=True, kw_only=True)
class Conv(PartSpec, kind="conv"):
    """A convolution over the sequence: each token from its neighbours, in a decoder from those before it."""

    kernel: Count = 3
    """Kernel size in tokens."""
    dilation: Count = 1
    """Distance between the tokens of the kernel."""
    activation: Activation = "identity"
    """Activation of the output."""
    bias: bool = True
    """Adds a learned bias."""

    def build(self, site: Site) -> "ConvPart":
        return ConvPart(self, site)

    @classmethod
    def examples(cls) -> "tuple[Conv, ...]":
        return (cls(), cls(kernel=2, dilation=3, bias=False, activation="relu"))


class ConvPart(Part):
    def __init__(self, spec: Conv, site: Site):
        super().__init__()
        self.span = Span(spec.kernel, spec.dilation, site.causal)
        self.dim, self.width = site.dim, site.width or site.dim
        self.taps = Linear(spec.kernel * site.dim, self.width, role="in", bias=spec.bias)
        self.activation = ACTIVATION_FUNCTIONS[spec.activation]
        self.out = Tap()

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> Tensor:
        return self.taps.weight.new_zeros(batch, self.span.before, self.dim)

    def forward(self, x: Tensor, frame: Frame, state: Tensor | None = None) -> Out:
        row = laid(x, frame, self.span, state)
        y = self.out(back_in_place(self.activation(self.taps(windows(row, self.span))), row))
        return Out(y, None if state is None else left_behind(row, state))
