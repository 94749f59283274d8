"""The gated recurrent unit (arXiv 1406.1078): gates for how much of the state is kept and how much is read.

r, z = sigmoid(W [x_t; h_{t-1}] + b) ;  n = tanh(W_n x_t + b_n + r (U_n h_{t-1} + b'_n)) ;  h_t = (1 - z) n + z h_{t-1}
The reset gate r acts after U_n, as in cuDNN and torch; gates lie in the order r, z, n, with torch's two biases.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from anyformer.core import Call, Count, Frame, Linear, Memory, Out, Part, PartSpec, Site, Tap, param
from anyformer.ops.devices import at_least_float32
from anyformer.ops.recurrence.cells import GRU_CELL, Weights, recur, recurrence_flops


@dataclass(frozen=True, kw_only=True)
class GRU(PartSpec, kind="gru"):
    """A gated recurrent unit: a state that an update gate keeps or replaces."""

    causal_only = True
    limits: ClassVar[Mapping[str, str]] = {
        "compile": "the fused kernel does not go through the compiler; only short calls are written out for it",
    }

    hidden: Count | None = None
    """Units of the state; as many as channels come out if not given. Other sizes get an output projection."""
    bias: bool = True
    """Adds learned biases, one to the input and one to the recurrent product."""

    def build(self, site: Site) -> "GRUPart":
        return GRUPart(self, site)

    @classmethod
    def examples(cls) -> "tuple[GRU, ...]":
        return (cls(), cls(hidden=24, bias=False))


class GRUPart(Part):
    def __init__(self, spec: GRU, site: Site):
        super().__init__()
        self.width = width = site.width or site.dim
        self.units = n = spec.hidden or width
        self.summary = (n,)
        self.input = param((3 * n, site.dim), "gate")
        self.recurrent = param((3 * n, n), "gate")
        self.roles["input"] = self.roles["recurrent"] = (("gate", n), ("gate", n), ("in", n))
        self.input_bias = param((3 * n,), "bias") if spec.bias else None
        self.recurrent_bias = param((3 * n,), "bias") if spec.bias else None
        self.out = Linear(n, width, role="out") if n != width else None
        self.state = Tap()

    @property
    def weights(self) -> Weights:
        return Weights(self.input, self.recurrent, self.input_bias, self.recurrent_bias)

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> Tensor:
        return self.recurrent.new_zeros(batch, self.units, dtype=at_least_float32(self.recurrent))

    def forward(self, x: Tensor, frame: Frame, state: Tensor | None = None) -> Out:
        begins = frame.document_starts(x, state)
        y, last = recur(GRU_CELL, self.weights, x, None if state is None else (state,), frame.valid, begins)
        y = self.state(y)
        return Out(y if self.out is None else self.out(y), None if last is None else last[0])

    def core_flops(self, call: Call) -> tuple[int, int]:
        return recurrence_flops(self.weights, call)
