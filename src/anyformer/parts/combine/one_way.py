"""A part that reads left to right in an encoder, or right to left: one direction where others read in both.

An encoder that reads ahead is the first half of the plain recurrent translator (arXiv 1409.3215); layers that take
turns in their direction read in both when stacked (arXiv 1606.04199).
"""

from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from anyformer.core import Frame, Memory, Out, Part, PartSpec, Site, State, kind_of
from anyformer.errors import SpecError, at


@dataclass(frozen=True, kw_only=True)
class OneWay(PartSpec, kind="one_way"):
    """Lets a part that reads left to right stand in an encoder, reading ahead or back."""

    sources = ("self", "memory")

    part: PartSpec
    """What reads."""
    direction: Literal["ahead", "back"] = "ahead"
    """From the first token or from the last."""

    def build(self, site: Site) -> "OneWayPart":
        if site.causal and self.direction == "back":
            raise SpecError('direction = "back" reads the future; only an encoder may.')
        return OneWayPart(self, site)

    @classmethod
    def examples(cls) -> "tuple[OneWay, ...]":
        gru, mix = kind_of(PartSpec, "gru")(), kind_of(PartSpec, "min_gru")()
        return (cls(part=mix), cls(part=gru), cls(part=mix, direction="back"))


class OneWayPart(Part):
    def __init__(self, spec: OneWay, site: Site):
        super().__init__()
        self.back, self.decodes = spec.direction == "back", site.causal
        with at("part"):
            self.part = spec.part.place(replace(site, causal=True))
        self.width, self.summary = self.part.width, self.part.summary if site.causal else ()
        self.final_widths = () if site.causal else self.part.read_widths

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> State:
        return self.part.init_state(batch, max_len, memory) if self.decodes else ()

    def forward(self, x: Tensor, frame: Frame, state: State | None = None) -> Out:
        if self.decodes:
            return self.part(x, frame, state)
        if not self.back:
            return self.part.read_to_end(x, frame)._replace(state=state)
        out = self.part.read_to_end(x.flip(1), frame.reversed(x))
        return out._replace(y=out.y.flip(1), state=state)
