"""A causal part in an encoder, run in one direction: left to right or right to left.

A left-to-right encoder is that of the first recurrent translators (arXiv 1409.3215); stacked layers of alternating
directions read in both (arXiv 1606.04199).
"""

from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from anyformer.core import Frame, Memory, Out, Part, PartSpec, Site, State, kind_of
from anyformer.errors import SpecError, at


@dataclass(frozen=True, kw_only=True)
class Unidirectional(PartSpec, kind="unidirectional"):
    """Runs a causal part in an encoder, forwards or backwards."""

    sources = ("self", "memory")

    part: PartSpec
    """The causal part, such as rnn, lstm, gru or mamba."""
    direction: Literal["ahead", "back"] = "ahead"
    """ahead: from the first token to the last; back: from the last to the first."""

    def build(self, site: Site) -> "UnidirectionalPart":
        if site.causal and self.direction == "back":
            raise SpecError('direction = "back" reads later tokens, which a decoder must not. Use "ahead".')
        return UnidirectionalPart(self, site)

    @classmethod
    def examples(cls) -> "tuple[Unidirectional, ...]":
        gru, mix = kind_of(PartSpec, "gru")(), kind_of(PartSpec, "min_gru")()
        return (cls(part=mix), cls(part=gru), cls(part=mix, direction="back"))


class UnidirectionalPart(Part):
    def __init__(self, spec: Unidirectional, site: Site):
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
