"""The plain recurrent network (Elman 1990): one state, carried along the sequence and mixed with every token.

h_t = tanh(W_x x_t + W_h h_{t-1} + b) , h_0 = 0          from d to n units: d n + n^2 + n weights
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from anyformer.core import Call, Count, Frame, Linear, Memory, Out, Part, PartSpec, Site, Tap, param
from anyformer.ops.devices import at_least_float32
from anyformer.ops.recurrence.cells import RNN_CELL, Weights, recur, recurrence_flops


@dataclass(frozen=True, kw_only=True)
class RNN(PartSpec, kind="rnn"):
    """The plain recurrent network: h_t = tanh(W_x x_t + W_h h_{t-1} + b)."""

    causal_only = True
    limits: ClassVar[Mapping[str, str]] = {
        "compile": "the fused kernel does not go through the compiler; only short calls are written out for it",
    }

    hidden: Count | None = None
    """Units of the state; as many as channels come out if not given. Other sizes get an output projection."""
    bias: bool = True
    """Adds a learned bias."""

    def build(self, site: Site) -> "RNNPart":
        return RNNPart(self, site)

    @classmethod
    def examples(cls) -> "tuple[RNN, ...]":
        return (cls(), cls(hidden=24, bias=False))


class RNNPart(Part):
    def __init__(self, spec: RNN, site: Site):
        super().__init__()
        self.width = width = site.width or site.dim
        self.units = n = spec.hidden or width
        self.summary = (n,)
        self.input = param((n, site.dim), "in")
        self.recurrent = param((n, n), "in")
        self.bias = param((n,), "bias") if spec.bias else None
        self.out = Linear(n, width, role="out") if n != width else None
        self.state = Tap()

    @property
    def weights(self) -> Weights:
        return Weights(self.input, self.recurrent, self.bias)

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> Tensor:
        return self.recurrent.new_zeros(batch, self.units, dtype=at_least_float32(self.recurrent))

    def forward(self, x: Tensor, frame: Frame, state: Tensor | None = None) -> Out:
        begins = frame.document_starts(x, state)
        y, last = recur(RNN_CELL, self.weights, x, None if state is None else (state,), frame.valid, begins)
        y = self.state(y)
        return Out(y if self.out is None else self.out(y), None if last is None else last[0])

    def core_flops(self, call: Call) -> tuple[int, int]:
        return recurrence_flops(self.weights, call)
