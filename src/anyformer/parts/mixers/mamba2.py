"""Mamba-2: a selective state space with one decay for each head, which makes it attention with a fading mask.

[z, u, dt] = W x ;  [v, B, C] = silu(conv(u)) ;  dt = softplus(dt + b) ;  a_t = exp(-dt_t exp(A_log))
S_t = a_t S_{t-1} + dt_t B_t v_t^T ;  y_t = C_t S_t + D v_t ;  out = W_o norm(y silu(z))          (arXiv 2405.21060)
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
from anyformer.ops.recurrence.outer_product_scan import outer_scan, outer_scan_flops


@dataclass(frozen=True, kw_only=True)
class Mamba2(PartSpec, kind="mamba2"):
    """A selective state space of heads, trained by matrix products over chunks: decodes with a state of fixed size."""

    perspective = "efficiency"
    causal_only = True

    expand: Count = 2
    """Inner channels, in multiples of dim."""
    head_dim: Count = 64
    """Channels of a head."""
    states: Count = 128
    """States of each channel."""
    groups: Count = 1
    """Number of vectors B and C of a token, each shared by an equal number of heads."""
    taps: Count = 4
    """Tokens that the short convolution reaches over."""
    eps: Positive = 1e-5
    """Keeps the division of the norm before the last matrix finite."""

    def build(self, site: Site) -> "Mamba2Part":
        inner = self.expand * site.dim
        if inner % (self.head_dim * self.groups):
            heads = f"head_dim x groups = {self.head_dim} x {self.groups}"
            raise SpecError(f"expand x dim = {inner} must be a multiple of {heads}.")
        return Mamba2Part(self, site)

    @classmethod
    def examples(cls) -> "tuple[Mamba2, ...]":
        return (cls(head_dim=16, states=8), cls(head_dim=8, states=5, groups=2, taps=3))


class Mamba2State(NamedTuple):
    """The inputs that the convolution still reaches [b k-1 d], and S [b g n h/g c]."""

    inputs: Tensor
    memory: Tensor


class Mamba2Part(Part):
    def __init__(self, spec: Mamba2, site: Site):
        super().__init__()
        self.g, self.n, self.c, self.taps, self.eps = spec.groups, spec.states, spec.head_dim, spec.taps, spec.eps
        self.inner, self.width = inner, width = spec.expand * site.dim, site.width or site.dim
        self.h = inner // self.c
        self.widths = (inner, self.g * self.n, self.g * self.n)
        widths = (inner, *self.widths, self.h)
        self.enter = Linear(site.dim, widths, role=("gate", "value", "key", "query", "gate"))
        self.conv, self.conv_bias = param((sum(self.widths), spec.taps), "scalar"), param((sum(self.widths),), "bias")
        self.step_bias, self.log_a = param((self.h,), "bias"), param((self.h,), "scalar")
        self.skip, self.gain = param((self.h,), "gain"), param((inner,), "gain")
        self.out = Linear(inner, width, role="out")
        self.steps = Tap()

    def init(self, fill: Fill) -> None:
        fill.by_role(self)
        self.conv.copy_((2 * torch.rand(self.conv.shape, generator=fill.rng("conv")) - 1) * self.taps**-0.5)
        self.log_a.copy_((1 + 15 * torch.rand(self.h, generator=fill.rng("log_a"))).log())
        steps = fill.log_uniform("step_bias", self.h, 0.001, 0.1).exp()
        self.step_bias.copy_(inverse_softplus(steps))

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> Mamba2State:
        inputs = self.conv.new_zeros(batch, self.taps - 1, sum(self.widths))
        shape = (batch, self.g, self.n, self.h // self.g, self.c)
        return Mamba2State(inputs, self.conv.new_zeros(shape, dtype=at_least_float32(self.conv)))

    def forward(self, x: Tensor, frame: Frame, state: Mamba2State | None = None) -> Out:
        x, begins, order = padding_last(x, frame, state)  # the convolution reaches over valid tokens only
        count = None if order is None else order.lengths
        z, u, dt = self.enter(x).split((self.inner, sum(self.widths), self.h), dim=-1)
        past = None if state is None else state.inputs
        document = None if begins is None else begins.cumsum(1)
        inputs = None if past is None else last_tokens(past, u, count, document)
        u = F.silu(short_conv(u, self.conv, self.conv_bias, past, document))
        v, write, read = u.split(self.widths, dim=-1)
        v, write, read = (y.unflatten(-1, (heads, -1)) for y, heads in ((v, self.h), (write, self.g), (read, self.g)))
        dt = self.steps(F.softplus(dt.to(at_least_float32(x)) + self.step_bias))  # [b t h]
        if count is not None:  # padding takes no time
            dt = dt.masked_fill((torch.arange(x.shape[1], device=x.device) >= count[:, None])[..., None], 0.0)
        written, log_decay = (v * dt[..., None]).to(x.dtype), -dt * self.log_a.to(dt.dtype).exp()
        y, memory = outer_scan(read, write, written, log_decay, None if state is None else state.memory, begins)
        y = (y + v * self.skip[:, None]).flatten(2)
        y = F.rms_norm(y * F.silu(z.to(y.dtype)), (self.inner,), self.gain.to(y.dtype), self.eps).to(x.dtype)
        y = self.out(y) if order is None else take(self.out(y), order.back)
        return Out(y, None if inputs is None or memory is None else Mamba2State(inputs, memory))

    def core_flops(self, call: Call) -> tuple[int, int]:
        tokens, heads, sizes = (call.batch, call.length), (self.g, self.h), (self.n, self.c)
        forward = outer_scan_flops(tokens, heads, sizes, gated=False, stateful=call.past > 0)
        return forward, 2 * forward
