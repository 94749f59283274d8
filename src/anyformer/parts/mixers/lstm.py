"""Long short-term memory (Hochreiter and Schmidhuber 1997): a cell that adds, between gates that open and shut.

i, f, o = sigmoid(W [x_t; h_{t-1}] + b) , g = tanh(W_g [x_t; h_{t-1}] + b_g) , c_t = f c_{t-1} + i g , h_t = o tanh(c_t)
Gates lie in the order i, f, g, o, with torch's two biases: 4 (d n + n^2 + 2 n) weights from d to n units. The forget
gate starts with a bias of 1, so that a fresh cell remembers (Gers et al. 2000).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from anyformer.core import Call, Count, Fill, Frame, Linear, Memory, Out, Part, PartSpec, Site, Tap, param
from anyformer.ops.devices import at_least_float32
from anyformer.ops.recurrence.cells import LSTM_CELL, Weights, recur, recurrence_flops


@dataclass(frozen=True, kw_only=True)
class LSTM(PartSpec, kind="lstm"):
    """Long short-term memory: an additive cell behind input, forget and output gates."""

    causal_only = True
    limits: ClassVar[Mapping[str, str]] = {
        "compile": "the fused kernel does not go through the compiler; only short calls are written out for it",
    }

    hidden: Count | None = None
    """Units of the state; as many as channels come out if not given. Other sizes get an output projection."""
    bias: bool = True
    """Adds learned biases, one to the input and one to the recurrent product."""

    def build(self, site: Site) -> "LSTMPart":
        return LSTMPart(self, site)

    @classmethod
    def examples(cls) -> "tuple[LSTM, ...]":
        return (cls(), cls(hidden=24, bias=False))


class LSTMState(NamedTuple):
    """[b n] each."""

    h: Tensor
    c: Tensor


class LSTMPart(Part):
    def __init__(self, spec: LSTM, site: Site):
        super().__init__()
        self.width = width = site.width or site.dim
        self.units = n = spec.hidden or width
        self.summary = (n, n)
        self.input = param((4 * n, site.dim), "gate")
        self.recurrent = param((4 * n, n), "gate")
        self.roles["input"] = self.roles["recurrent"] = (("gate", n), ("gate", n), ("in", n), ("gate", n))
        self.input_bias = param((4 * n,), "bias") if spec.bias else None
        self.recurrent_bias = param((4 * n,), "bias") if spec.bias else None
        self.out = Linear(n, width, role="out") if n != width else None
        self.state = Tap()

    def init(self, fill: Fill) -> None:
        fill.by_role(self)
        if self.input_bias is not None:
            self.input_bias[self.units : 2 * self.units] = 1.0

    @property
    def weights(self) -> Weights:
        return Weights(self.input, self.recurrent, self.input_bias, self.recurrent_bias)

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> LSTMState:
        h = self.recurrent.new_zeros(batch, self.units, dtype=at_least_float32(self.recurrent))
        return LSTMState(h, torch.zeros_like(h))

    def forward(self, x: Tensor, frame: Frame, state: LSTMState | None = None) -> Out:
        begins = frame.document_starts(x, state)
        y, last = recur(LSTM_CELL, self.weights, x, state, frame.valid, begins)
        y = self.state(y)
        return Out(y if self.out is None else self.out(y), None if last is None else LSTMState(*last))

    def core_flops(self, call: Call) -> tuple[int, int]:
        return recurrence_flops(self.weights, call)
