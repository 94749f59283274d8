"""A separable convolution: each channel by itself over the sequence, then one matrix over the channels.

v_{t,c} = sum_{j<k} w_{c,j} x_{t+j-before,c} ;  y = phi(W v + b)          k d + d d' weights instead of k d d'
Causal in a decoder, as far to either side in an encoder (arXiv 1610.02357; the Evolved Transformer, arXiv 1901.11117).
"""

from dataclasses import dataclass

from torch import Tensor

from anyformer.core import Count, Frame, Linear, Memory, Out, Part, PartSpec, Site, param
from anyformer.ops.activations import ACTIVATION_FUNCTIONS, Activation
from anyformer.ops.convolution import Span, back_in_place, laid, left_behind, weighted


@dataclass(frozen=True, kw_only=True)
class SeparableConv(PartSpec, kind="separable_conv"):
    """A convolution of each channel by itself, then a matrix over the channels."""

    kernel: Count = 9
    """Kernel size in tokens."""
    activation: Activation = "identity"
    """Activation of the output."""
    bias: bool = True
    """Adds a learned bias to the matrix."""

    def build(self, site: Site) -> "SeparableConvPart":
        return SeparableConvPart(self, site)

    @classmethod
    def examples(cls) -> "tuple[SeparableConv, ...]":
        return (cls(kernel=5), cls(kernel=3, activation="relu", bias=False))


class SeparableConvPart(Part):
    def __init__(self, spec: SeparableConv, site: Site):
        super().__init__()
        self.span = Span(spec.kernel, causal=site.causal)
        self.width = site.width or site.dim
        self.kernel = param((site.dim, spec.kernel), "in")
        self.channels = Linear(site.dim, self.width, role="in", bias=spec.bias)
        self.activation = ACTIVATION_FUNCTIONS[spec.activation]

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> Tensor:
        return self.kernel.new_zeros(batch, self.span.before, self.kernel.shape[0])

    def forward(self, x: Tensor, frame: Frame, state: Tensor | None = None) -> Out:
        row = laid(x, frame, self.span, state)
        y = self.activation(self.channels(back_in_place(weighted(row, self.span, self.kernel), row)))
        return Out(y, None if state is None else left_behind(row, state))
