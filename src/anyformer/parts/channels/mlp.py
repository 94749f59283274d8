"""The position-wise feed-forward network: two matrices with an activation between.

y = W_2 phi(W_1 x + b_1) + b_2          (arXiv 1706.03762, eq. 2)
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.core import Chance, Count, Frame, Linear, Out, Part, PartSpec, Site, Units
from anyformer.ops.activations import ACTIVATION_FUNCTIONS, Activation


@dataclass(frozen=True, kw_only=True)
class MLP(PartSpec, kind="mlp"):
    """Position-wise feed-forward: two matrices with an activation between."""

    hidden: Count | None = None
    """Width between the matrices; 4 dim if not given."""
    activation: Activation = "gelu"
    """Activation of the hidden values."""
    bias: bool = False
    """Adds a learned bias to both matrices."""
    dropout: Chance = 0.0
    """Dropout on the hidden values."""

    def sizes(self, site: Site) -> dict[str, int]:
        return {"hidden": self.hidden or 4 * site.dim}

    def build(self, site: Site) -> "MLPPart":
        return MLPPart(self, site)


class MLPPart(Part):
    divided = ()

    def __init__(self, spec: MLP, site: Site):
        super().__init__()
        hidden = spec.sizes(site)["hidden"]
        self.removable = Units("neurons", hidden, {"hidden": 1})
        self.up = Linear(site.dim, hidden, role="in", bias=spec.bias)
        self.down = Linear(hidden, site.dim, role="out", bias=spec.bias)
        self.activation, self.dropout = ACTIVATION_FUNCTIONS[spec.activation], spec.dropout

    def forward(self, x: Tensor, frame: Frame, state: tuple[()] | None = None) -> Out:
        hidden = torch.dropout(self.activation(self.up(x)), self.dropout, self.training)
        return Out(self.down(hidden), state)
