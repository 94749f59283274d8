"""S4D: a diagonal state space for each channel, which fades and turns and does not depend on the token.

x' = A x + u, y = 2 Re(C x) + D u, in steps of dt ;  A_n = -1/2 + i pi n          (S4D-Lin, arXiv 2206.11893)
Then GELU and a matrix, which mixes the channels.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core import Call, Count, Fill, Frame, Linear, Memory, Out, Part, PartSpec, Positive, Site, Tap, param
from anyformer.errors import SpecError
from anyformer.ops.devices import at_least_float32
from anyformer.ops.state_space.diagonal import Discretisation, Modes, modes
from anyformer.ops.state_space.state_space_scan import state_space_flops, state_space_scan


@dataclass(frozen=True, kw_only=True)
class S4D(PartSpec, kind="s4d"):
    """A diagonal state space for each channel: a long convolution in training, a recurrence in decoding."""

    perspective = "efficiency"
    causal_only = True

    modes: Count = 16
    """Pairs of conjugate states of each channel."""
    discretisation: Discretisation = "zoh"
    """How continuous time becomes steps."""
    least_step: Positive = 0.001
    """Shortest time step that a fresh channel gets; 1 / step is about how many tokens it remembers."""
    largest_step: Positive = 0.1
    """Longest time step that a fresh channel gets."""

    def check(self) -> None:
        if self.least_step > self.largest_step:
            raise SpecError(f"least_step={self.least_step} must not be above largest_step={self.largest_step}.")

    def build(self, site: Site) -> "S4DPart":
        return S4DPart(self, site)

    @classmethod
    def examples(cls) -> "tuple[S4D, ...]":
        return (cls(modes=4), cls(modes=3, discretisation="bilinear"))


class S4DPart(Part):
    def __init__(self, spec: S4D, site: Site):
        super().__init__()
        self.spec, d, m = spec, site.dim, spec.modes
        self.width = site.width or d
        self.log_decay, self.angle = param((d, m), "scalar"), param((d, m), "scalar")
        self.c, self.log_step = param((d, m, 2), "scalar"), param((d,), "scalar")
        self.skip = param((d,), "gain")
        self.out = Linear(d, self.width, role="out")
        self.response = Tap()

    def init(self, fill: Fill) -> None:
        fill.by_role(self)
        self.log_decay.fill_(math.log(0.5))
        self.angle.copy_(torch.pi * torch.arange(self.angle.shape[1]))
        self.c.copy_(torch.randn(self.c.shape, generator=fill.rng("c")) * 0.5**0.5)
        steps = (self.spec.least_step, self.spec.largest_step)
        self.log_step.copy_(fill.log_uniform("log_step", len(self.log_step), *steps))

    def dynamics(self) -> Modes:
        """The discrete state space."""
        dtype = at_least_float32(self.c)
        decay, angle, c, step = (x.to(dtype) for x in (self.log_decay, self.angle, self.c, self.log_step))
        return modes(-decay.exp(), angle, c, step.exp(), self.spec.discretisation)

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> Tensor:
        d, m = self.angle.shape
        return self.c.new_zeros(batch, d, 2 * m, dtype=at_least_float32(self.c))

    def forward(self, x: Tensor, frame: Frame, state: Tensor | None = None) -> Out:
        dynamics, begins = self.dynamics(), frame.document_starts(x, state)
        y, state = state_space_scan(dynamics, x.to(dynamics.decay.dtype), state, begins, frame.valid)
        return Out(self.out(F.gelu(self.response(y) + x * self.skip).to(x.dtype)), state)

    def core_flops(self, call: Call) -> tuple[int, int]:
        d, m = self.angle.shape
        forward = state_space_flops(call, d, 2 * m)
        return forward, 2 * forward
