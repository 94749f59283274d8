"""Gated linear units: one half of the hidden values gates the other.

y = W_2 (phi(W x) * (V x))          (arXiv 2002.05202)
phi = sigmoid: GLU, gelu: GEGLU, relu: ReGLU, silu: SwiGLU, identity: bilinear (LiGLU).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.core import Chance, Count, Frame, Linear, Out, Part, PartSpec, Site, Units
from anyformer.ops.activations import ACTIVATION_FUNCTIONS, Activation


@dataclass(frozen=True, kw_only=True)
class GLU(PartSpec, kind="glu"):
    """Gated feed-forward: one half of the hidden values gates the other (GLU, GEGLU, ReGLU, SwiGLU, bilinear)."""

    hidden: Count | None = None
    """Width of each half; 8/3 dim (as many weights as an mlp of 4 dim), rounded up to a multiple of 8, if not given."""
    activation: Activation = "silu"
    """Activation of the gate."""
    bias: bool = False
    """Adds a learned bias to the matrices."""
    dropout: Chance = 0.0
    """Dropout on the gated values."""

    def sizes(self, site: Site) -> dict[str, int]:
        return {"hidden": self.hidden or -(-8 * site.dim // 24) * 8}

    def build(self, site: Site) -> "GLUPart":
        return GLUPart(self, site)


class GLUPart(Part):
    divided = ()

    def __init__(self, spec: GLU, site: Site):
        super().__init__()
        hidden = spec.sizes(site)["hidden"]
        self.removable = Units("neurons", hidden, {"hidden": 1})
        self.up = Linear(site.dim, (hidden, hidden), role=("gate", "in"), bias=spec.bias)
        self.down = Linear(hidden, site.dim, role="out", bias=spec.bias)
        self.activation, self.dropout = ACTIVATION_FUNCTIONS[spec.activation], spec.dropout

    def forward(self, x: Tensor, frame: Frame, state: tuple[()] | None = None) -> Out:
        gate, value = self.up(x).chunk(2, dim=-1)
        hidden = torch.dropout(self.activation(gate) * value, self.dropout, self.training)
        return Out(self.down(hidden), state)
