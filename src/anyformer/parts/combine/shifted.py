"""A part with a learned scalar added to the input of each of its matrices.

y = W (x + s),  one s for each matrix, 0 at first          (Fixup, arXiv 1901.09321, section 3)
In a model without norms the shifts let each layer move the mean of its input. Matrices that read one input (query, key
and value of self-attention) are stored as one and have one shift.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from anyformer.core import Frame, Linear, Memory, Module, Out, Part, PartSpec, Site, State, kind_of, param
from anyformer.errors import at


@dataclass(frozen=True, kw_only=True)
class Shifted(PartSpec, kind="shifted"):
    """Adds a learned scalar to the input of each matrix of a part, as Fixup does in models without norms."""

    sources = ("self", "memory")

    part: PartSpec
    """The part whose matrices get a shift of their input."""

    def build(self, site: Site) -> "ShiftedPart":
        with at("part"):
            return ShiftedPart(self.part.place(site))

    @classmethod
    def examples(cls) -> "tuple[Shifted, ...]":
        return tuple(cls(part=kind_of(PartSpec, kind)()) for kind in ("attention", "mlp"))


class ShiftedLinear(Module):
    """A matrix whose input is shifted by one learned number."""

    def __init__(self, linear: Linear):
        super().__init__()
        self.linear = linear
        self.shift = param((1,), "scalar")

    @property
    def weight(self) -> Tensor:
        return self.linear.weight

    @property
    def widths(self) -> tuple[int, ...]:
        return self.linear.widths

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x + self.shift.type_as(x))

    if TYPE_CHECKING:
        __call__ = forward


class ShiftedPart(Part):
    def __init__(self, part: Part):
        super().__init__()
        self.part = part
        for module in [*part.modules()]:
            for name, child in [*module.named_children()]:
                if isinstance(child, Linear):
                    setattr(module, name, ShiftedLinear(child))
        self.width, self.summary = part.width, part.summary
        self.final_widths, self.changes_length = part.final_widths, part.changes_length

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> State:
        return self.part.init_state(batch, max_len, memory)

    def forward(self, x: Tensor, frame: Frame, state: State | None = None) -> Out:
        return self.part(x, frame, state)
