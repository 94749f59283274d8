"""The minimal gated recurrence: gates that read the token and not the state, so that training is a parallel scan.

z_t = sigmoid(W_z x_t) ;  h_t = (1 - z_t) h_{t-1} + z_t W_h x_t          (minGRU, arXiv 2410.01201)
"""

from dataclasses import dataclass

from torch import Tensor

from anyformer.core import Count, Frame, Linear, Memory, Out, Part, PartSpec, Site, Tap
from anyformer.ops.devices import at_least_float32
from anyformer.ops.recurrence.linear_scan import linear_scan


@dataclass(frozen=True, kw_only=True)
class MinGRU(PartSpec, kind="min_gru"):
    """A gated recurrence whose gates read the token alone: trains in parallel, decodes with one vector of state."""

    perspective = "efficiency"
    causal_only = True

    hidden: Count | None = None
    """Units of the state; as many as channels come out if not given. Other sizes get an output projection."""
    bias: bool = True
    """Adds learned biases to gate and candidate."""

    def build(self, site: Site) -> "MinGRUPart":
        return MinGRUPart(self, site)

    @classmethod
    def examples(cls) -> "tuple[MinGRU, ...]":
        return (cls(), cls(hidden=24, bias=False))


class MinGRUPart(Part):
    def __init__(self, spec: MinGRU, site: Site):
        super().__init__()
        self.width = width = site.width or site.dim
        self.units = n = spec.hidden or width
        self.summary = (n,)
        self.gates = Linear(site.dim, (n, n), role=("gate", "in"), bias=spec.bias)
        self.out = Linear(n, width, role="out") if n != width else None
        self.update, self.state = Tap(), Tap()

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> Tensor:
        return self.gates.weight.new_zeros(batch, self.units, dtype=at_least_float32(self.gates.weight))

    def forward(self, x: Tensor, frame: Frame, state: Tensor | None = None) -> Out:
        begins = frame.document_starts(x, state)
        z, candidate = self.gates(x).chunk(2, dim=-1)  # [b t n]
        z = self.update(z.sigmoid())
        if frame.valid is not None:  # padding keeps the state
            z = z.masked_fill(~frame.valid[..., None], 0.0)
        keep = 1 - z if begins is None else (1 - z).masked_fill(begins[..., None], 0.0)
        h = linear_scan(keep, z * candidate, state)
        y = self.state(h).to(x.dtype)
        return Out(y if self.out is None else self.out(y), None if state is None else h[:, -1])
