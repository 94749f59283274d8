"""A part that reads the whole stream and changes its first half; the second half passes unchanged to later layers.

[h; c] -> [h'; c] ,  h' = part([h; c])  or  h + part([h; c])          (GNMT, arXiv 1609.08144, eq. 6 and section 3.1)
GNMT computes the context c once, in the bottom layer of its decoder (`attention_fed` with gives = "state_and_context").
Each layer above reads c together with its input. The branch is joined by `replace`.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from anyformer.core import Frame, Memory, Out, Part, PartSpec, Site, State, kind_of
from anyformer.errors import SpecError, at

NARROWING = (
    "conv, gated_linear, gru, linear_attention, lstm, mamba, mamba2, min_gru, performer, reformer, rnn, s4, s4d, "
    "separable_conv"
)
"""Kinds whose output may have another width than their input."""


@dataclass(frozen=True, kw_only=True)
class HalfStream(PartSpec, kind="half_stream"):
    """Reads the whole stream and changes its first half; the second, a context, is unchanged. Join it by `replace`."""

    sources = ("self", "memory")

    part: PartSpec
    """The inner part; a kind whose output may be half as wide as its input, such as lstm, gru, conv or mamba."""
    half: Literal["new", "added"] = "new"
    """new: the part's output replaces the first half; added: it is added to it."""

    def build(self, site: Site) -> "HalfStreamPart":
        if site.dim % 2:
            raise SpecError(f"dim={site.dim} has no halves. Make it even.")
        return HalfStreamPart(self, site)

    @classmethod
    def examples(cls) -> "tuple[HalfStream, ...]":
        mix, lstm = kind_of(PartSpec, "min_gru")(), kind_of(PartSpec, "lstm")()
        return (cls(part=mix), cls(part=lstm, half="added"))


class HalfStreamPart(Part):
    def __init__(self, spec: HalfStream, site: Site):
        super().__init__()
        self.adds, half = spec.half == "added", site.dim // 2
        with at("part"):
            self.part = spec.part.place(replace(site, width=half))
        if self.part.width != half:
            raise SpecError(f"{spec.part.kind} cannot give half of dim={site.dim}. Use {NARROWING}.")
        self.summary, self.final_widths = self.part.summary, self.part.final_widths

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> State:
        return self.part.init_state(batch, max_len, memory)

    def forward(self, x: Tensor, frame: Frame, state: State | None = None) -> Out:
        out, (below, context) = self.part(x, frame, state), x.chunk(2, dim=-1)
        return out._replace(y=torch.cat((below + out.y if self.adds else out.y, context), dim=-1))
