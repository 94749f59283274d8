"""S4: a state space that starts from HiPPO-LegS, diagonal but for a rank of one, so that it can remember all it read.

x' = A x + B u, y = 2 Re(C x) + D u, A = diag(lambda) - P P* , in bilinear steps of dt          (arXiv 2111.00396)
A and B are shared by the channels, each of which has its own step, C and D. Then GELU and a matrix.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core import Call, Count, Fill, Frame, Linear, Memory, Out, Part, PartSpec, Positive, Site, Tap, param
from anyformer.errors import SpecError
from anyformer.ops.devices import at_least_float32
from anyformer.ops.state_space.hippo import normal_plus_low_rank
from anyformer.ops.state_space.low_rank import LowRankDynamics, Spectrum, low_rank, low_rank_flops
from anyformer.ops.state_space.state_space_scan import state_space_flops, state_space_scan


@dataclass(frozen=True, kw_only=True)
class S4(PartSpec, kind="s4"):
    """The state space of HiPPO for each channel, its kernel made by Cauchy products; a recurrence in decoding."""

    perspective = "efficiency"
    causal_only = True

    modes: Count = 16
    """Pairs of conjugate states of each channel: half as many as HiPPO has polynomials."""
    least_step: Positive = 0.001
    """Shortest time step that a fresh channel gets; 1 / step is about how many tokens it remembers."""
    largest_step: Positive = 0.1
    """Longest time step that a fresh channel gets."""

    def check(self) -> None:
        if self.least_step > self.largest_step:
            raise SpecError(f"least_step={self.least_step} must not be above largest_step={self.largest_step}.")

    def build(self, site: Site) -> "S4Part":
        return S4Part(self, site)

    @classmethod
    def examples(cls) -> "tuple[S4, ...]":
        return (cls(modes=4),)


class S4Part(Part):
    def __init__(self, spec: S4, site: Site):
        super().__init__()
        self.spec, self.d, self.m = spec, site.dim, spec.modes
        self.width = site.width or site.dim
        self.log_decay, self.angle = param((self.m,), "scalar"), param((self.m,), "scalar")
        self.p, self.b = param((self.m, 2), "scalar"), param((self.m, 2), "scalar")
        self.c, self.log_step = param((self.d, self.m, 2), "scalar"), param((self.d,), "scalar")
        self.skip = param((self.d,), "gain")
        self.out = Linear(self.d, self.width, role="out")
        self.response = Tap()

    def init(self, fill: Fill) -> None:
        fill.by_role(self)
        hippo = normal_plus_low_rank(2 * self.m)
        self.log_decay.copy_((-hippo.eigenvalues.real).log())
        self.angle.copy_(hippo.eigenvalues.imag)
        self.p.copy_(torch.view_as_real(hippo.p))
        self.b.copy_(torch.view_as_real(hippo.b))
        self.c.copy_(torch.randn(self.c.shape, generator=fill.rng("c")) * 0.5**0.5)
        steps = (self.spec.least_step, self.spec.largest_step)
        self.log_step.copy_(fill.log_uniform("log_step", len(self.log_step), *steps))

    def dynamics(self, tokens: int = 1) -> LowRankDynamics:
        """The discrete state space, for scans of `tokens`."""
        dtype = at_least_float32(self.c)
        tensors = (self.log_decay, self.angle, self.p, self.b, self.c, self.log_step)
        decay, angle, p, b, c, step = (x.to(dtype) for x in tensors)
        return low_rank(Spectrum(-decay.exp(), angle, p, b), c, step.exp(), tokens)

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> Tensor:
        return self.c.new_zeros(batch, self.d, 2 * self.m, dtype=at_least_float32(self.c))

    def forward(self, x: Tensor, frame: Frame, state: Tensor | None = None) -> Out:
        dynamics, begins = self.dynamics(x.shape[1]), frame.document_starts(x, state)
        y, state = state_space_scan(dynamics, x.to(dynamics.step.dtype), state, begins, frame.valid)
        return Out(self.out(F.gelu(self.response(y) + x * self.skip).to(x.dtype)), state)

    def core_flops(self, call: Call) -> tuple[int, int]:
        scan = state_space_flops(call, self.d, 2 * self.m)
        forward, backward = low_rank_flops(call, self.d, 2 * self.m)
        return scan + forward, 2 * scan + backward
