"""Mamba: a state space that chooses what to remember, since step, input and output depend on the token.

[u, z] = W x ;  u = silu(conv(u)) ;  [r, B, C] = W_u u ;  dt = softplus(W_dt r + b)          (arXiv 2312.00752, alg. 2)
h_t = exp(dt_t A) h_{t-1} + dt_t B_t u_t ;  y_t = C_t h_t + D u_t ;  out = W_o (y silu(z)) ;  A = -exp(A_log)
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core import Call, Count, Fill, Frame, Linear, Memory, Out, Part, PartSpec, Positive, Site, Tap, param
from anyformer.errors import SpecError
from anyformer.ops.activations import inverse_softplus
from anyformer.ops.convolution import last_tokens, padding_last, short_conv
from anyformer.ops.devices import at_least_float32
from anyformer.ops.padding import take
from anyformer.ops.recurrence.selective_scan import selective_scan, selective_scan_flops


@dataclass(frozen=True, kw_only=True)
class Mamba(PartSpec, kind="mamba"):
    """A selective state space between a short convolution and a gate: decodes with a state of fixed size."""

    perspective = "efficiency"
    causal_only = True

    expand: Count = 2
    """Inner channels, in multiples of dim."""
    states: Count = 16
    """States of each inner channel."""
    taps: Count = 4
    """Tokens that the short convolution reaches over."""
    rank: Count | None = None
    """Channels that the steps are made from; dim / 16, rounded up, if not given."""
    least_step: Positive = 0.001
    """Shortest time step that a fresh channel gets."""
    largest_step: Positive = 0.1
    """Longest time step that a fresh channel gets."""

    def check(self) -> None:
        if self.least_step > self.largest_step:
            raise SpecError(f"least_step={self.least_step} must not be above largest_step={self.largest_step}.")

    def build(self, site: Site) -> "MambaPart":
        return MambaPart(self, site)

    @classmethod
    def examples(cls) -> "tuple[Mamba, ...]":
        return (cls(states=4), cls(states=3, expand=1, taps=3, rank=5))


class MambaState(NamedTuple):
    """The inputs that the convolution still reaches [b k-1 d], and h [b n d]."""

    inputs: Tensor
    h: Tensor


class MambaPart(Part):
    def __init__(self, spec: Mamba, site: Site):
        super().__init__()
        self.spec, self.n, self.rank = spec, spec.states, spec.rank or -(-site.dim // 16)
        self.inner, self.width = inner, width = spec.expand * site.dim, site.width or site.dim
        self.enter = Linear(site.dim, (inner, inner), role=("in", "gate"))
        self.conv, self.conv_bias = param((inner, spec.taps), "scalar"), param((inner,), "bias")
        self.select = Linear(inner, (self.rank, self.n, self.n), role=("gate", "key", "query"))
        self.step, self.step_bias = param((inner, self.rank), "scalar"), param((inner,), "bias")
        self.log_a, self.skip = param((inner, self.n), "scalar"), param((inner,), "gain")
        self.out = Linear(inner, width, role="out")
        self.steps = Tap()

    def init(self, fill: Fill) -> None:
        fill.by_role(self)
        for name, bound in (("conv", self.spec.taps**-0.5), ("step", self.rank**-0.5)):
            tensor = getattr(self, name)
            tensor.copy_((2 * torch.rand(tensor.shape, generator=fill.rng(name)) - 1) * bound)
        self.log_a.copy_(torch.arange(1, self.n + 1).log())
        steps = fill.log_uniform("step_bias", self.inner, self.spec.least_step, self.spec.largest_step).exp()
        self.step_bias.copy_(inverse_softplus(steps))

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> MambaState:
        inputs = self.conv.new_zeros(batch, self.spec.taps - 1, self.inner)
        return MambaState(inputs, self.conv.new_zeros(batch, self.n, self.inner, dtype=at_least_float32(self.conv)))

    def forward(self, x: Tensor, frame: Frame, state: MambaState | None = None) -> Out:
        x, begins, order = padding_last(x, frame, state)  # the convolution reaches over valid tokens only
        count = None if order is None else order.lengths
        u, z = self.enter(x).chunk(2, dim=-1)
        past = None if state is None else state.inputs
        document = None if begins is None else begins.cumsum(1)
        inputs = None if past is None else last_tokens(past, u, count, document)
        u = F.silu(short_conv(u, self.conv, self.conv_bias, past, document))
        r, write, read = self.select(u).split(self.select.widths, dim=-1)
        dt = self.steps(F.softplus(F.linear(r, self.step, self.step_bias).to(at_least_float32(x))))
        if count is not None:  # padding takes no time
            dt = dt.masked_fill((torch.arange(x.shape[1], device=x.device) >= count[:, None])[..., None], 0.0)
        a = -self.log_a.to(dt.dtype).exp().T
        y, h = selective_scan(u, dt, a, write, read, None if state is None else state.h, begins)
        y = self.out(((y + u * self.skip) * F.silu(z)).to(x.dtype))
        y = y if order is None else take(y, order.back)
        return Out(y, None if inputs is None else MambaState(inputs, h))

    def core_flops(self, call: Call) -> tuple[int, int]:
        tokens = call.batch * call.length
        steps, (forward, backward) = 2 * tokens * self.step.numel(), selective_scan_flops(tokens, self.n, self.inner)
        return steps + forward, 2 * steps + backward
