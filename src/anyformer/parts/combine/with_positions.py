"""A part with positions added to its input: y = part(x + p).

Used at every layer, positions need not be preserved by the stream, as in the Universal Transformer (arXiv 1807.03819).
"""

from dataclasses import dataclass

from torch import Tensor

from anyformer.core import Frame, Heads, Memory, Out, Part, PartSpec, Position, PositionSpec, Site, State, kind_of
from anyformer.errors import at
from anyformer.parts.positions.sinusoidal import Sinusoidal


@dataclass(frozen=True, kw_only=True)
class WithPositions(PartSpec, kind="with_positions"):
    """Adds positions to the input of a part: at one layer, or at each."""

    sources = ("self", "memory")

    position: PositionSpec
    """A scheme that acts on token vectors: sinusoidal, learned, concatenate."""
    part: PartSpec
    """The part that reads its input with positions."""

    def build(self, site: Site) -> "WithPositionsPart":
        position = self.position.build_vectors(site, Heads(1, site.dim))
        with at("part"):
            return WithPositionsPart(position, self.part.place(site))

    @classmethod
    def examples(cls) -> "tuple[WithPositions, ...]":
        return (cls(position=Sinusoidal(), part=kind_of(PartSpec, "attention")()),)


class WithPositionsPart(Part):
    def __init__(self, position: Position, part: Part):
        super().__init__()
        self.position, self.part = position, part
        self.final_widths, self.changes_length = part.final_widths, part.changes_length

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> State:
        self.position.check_length(max_len)
        return self.part.init_state(batch, max_len, memory)

    def forward(self, x: Tensor, frame: Frame, state: State | None = None) -> Out:
        return self.part(self.position.embed(x, frame.positions_for(x)), frame, state)
