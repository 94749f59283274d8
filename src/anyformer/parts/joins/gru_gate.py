"""Gates of the Universal Transformer's release: the branch's output passes gates like a GRU's before it is added.

x' = x + (1 - u) y + u c          (arXiv 1807.03819 as released with arXiv 2102.11972)
u, r = sigmoid(W_u [n(x); n(y)] + b_u), sigmoid(W_r [n(x); n(y)] + b_r) ;  c = sigmoid(W_c [n(r x); n(y)] + b_c)
The candidate c has a sigmoid, too, where a GRU has a tanh. n: a norm, with weights for each of x, y and r x.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.core import Frame, Join, JoinSpec, Linear, NormSpec, Site, Tap
from anyformer.errors import SpecError
from anyformer.parts.norms.layer import LayerNorm


@dataclass(frozen=True, kw_only=True)
class GRUGate(JoinSpec, kind="gru_gate"):
    """The residual connection with an update gate, a reset gate and a candidate between the branch and the stream."""

    norm: NormSpec = LayerNorm()
    """Normalises the inputs of the gates, each by itself."""

    def check(self) -> None:
        if self.norm.limits:
            raise SpecError(f"norm: {self.norm.kind} depends on other tokens. Use rms, layer or scale.")

    def build(self, site: Site) -> "GRUGateModule":
        return GRUGateModule(self, site)


class GRUGateModule(Join):
    def __init__(self, spec: GRUGate, site: Site):
        super().__init__()
        d = site.dim
        self.norm_x, self.norm_y, self.norm_reset = (spec.norm.build(site) for _ in range(3))
        self.gates = Linear(2 * d, (d, d), role="gate", bias=True)
        self.candidate = Linear(2 * d, d, role="gate", bias=True)
        self.update = Tap()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        token = Frame()  # the norms are of each token alone
        branch = self.norm_y(y, token)
        update, reset = self.gates(torch.cat((self.norm_x(x, token), branch), dim=-1)).sigmoid().chunk(2, dim=-1)
        candidate = self.candidate(torch.cat((self.norm_reset(reset * x, token), branch), dim=-1)).sigmoid()
        update = self.update(update)
        return x + (1 - update) * y + update * candidate
