"""A recurrence that looks before every step: what it finds at the source is part of its next input.

c_t = look(s_{t-1}) ;  s_t = cell([x_t; c_t], s_{t-1})          (arXiv 1409.0473, with additive attention and a GRU)
The look needs the state and the state the look, so the tokens go through one by one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from anyformer.core import Frame, Memory, Out, Part, PartSpec, Site, State, Tap, kind_of
from anyformer.errors import SpecError, at


@dataclass(frozen=True, kw_only=True)
class Attentive(PartSpec, kind="attentive"):
    """A recurrence whose input at every step has what its last state finds at the encoder."""

    limits: ClassVar[Mapping[str, str]] = {"sources": "it looks at the one source of a row"}

    part: PartSpec
    """The recurrence: rnn, lstm, gru, min_gru, or one of them in `started`."""
    look: PartSpec
    """How the state looks at the encoder: additive_attention, attention."""
    gives: Literal["state", "state_and_context"] = "state"
    """What goes on to the next layer: the state, or half of the width each of it and of what was found (GNMT)."""

    def build(self, site: Site) -> "AttentivePart":
        if not site.causal:
            raise SpecError("attentive is a decoder's recurrence that looks at an encoder; use its part alone there.")
        return AttentivePart(self, site)

    @classmethod
    def examples(cls) -> "tuple[Attentive, ...]":
        look, mix = kind_of(PartSpec, "additive_attention")(), kind_of(PartSpec, "min_gru")()
        gru, lstm = kind_of(PartSpec, "gru")(), kind_of(PartSpec, "lstm")()
        both = cls(part=lstm, look=look, gives="state_and_context")
        return (cls(part=mix, look=look), cls(part=gru, look=look), both)


class Looking(NamedTuple):
    """The cell's state, what it looks at, and the state that a row begins with."""

    cell: State
    source: State
    fresh: State


class AttentivePart(Part):
    def __init__(self, spec: Attentive, site: Site):
        super().__init__()
        self.both = spec.gives == "state_and_context"
        width = site.dim // 2 if self.both else site.dim
        if self.both and site.dim % 2:
            raise SpecError(f"dim={site.dim} has no halves for state and context. Make it even.")
        with at("look"):
            self.look = spec.look.place(replace(site, dim=width, source="memory"))
        with at("part"):
            self.part = spec.part.place(replace(site, dim=site.dim + width, width=width))
        if not self.part.summary or self.part.width != width:
            raise SpecError(f"{spec.part.kind} has no state to look with. Use rnn, lstm, gru or min_gru.")
        if self.part.summary[0] != width:
            raise SpecError(
                f"the state has {self.part.summary[0]} units, the look is {width} wide. Leave `hidden` out."
            )
        self.context = Tap()

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> Looking:
        cell = self.part.init_state(batch, max_len, memory)
        return Looking(cell, self.look.init_state(batch, max_len, memory), tree_map(torch.clone, cell))

    def forward(self, x: Tensor, frame: Frame, state: Looking | None = None) -> Out:
        if frame.memory is not None and frame.memory.segments is not None:
            raise SpecError("attentive: several sources in a row. Use one source a row: data.packing = bucket.")
        cell, source, fresh = state or self.init_state(x.shape[0], x.shape[1], frame.memory)
        begins, frame, outputs = frame.document_starts(x, state), frame.with_positions(x), []
        for t in range(x.shape[1]):
            here = frame.at_step(t)
            if begins is not None:  # the look is with the state that the cell will begin with
                cell = tree_map(partial(torch.where, begins[:, t, None]), fresh, cell)
            query = tree_leaves(cell)[0][:, None].to(x.dtype)
            context = self.look(query, here, source).y
            out = self.part(torch.cat((x[:, t : t + 1], context), dim=-1), here, cell)
            cell = out.state
            outputs.append(torch.cat((out.y, context), dim=-1) if self.both else out.y)
        y = self.context(torch.cat(outputs, dim=1))
        return Out(y, None if state is None else Looking(cell, source, fresh))
