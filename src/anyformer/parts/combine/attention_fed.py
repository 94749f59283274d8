"""A recurrence with attention at every step: the context vector from the source is part of its next input.

c_t = look(s_{t-1}) ;  s_t = cell([x_t; c_t], s_{t-1})          (arXiv 1409.0473, with additive attention and a GRU)
Attention needs the state and the state needs the context, so tokens are processed one by one.
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
class AttentionFed(PartSpec, kind="attention_fed"):
    """A recurrence whose input at every step includes attention over the encoder, with its last state as the query."""

    limits: ClassVar[Mapping[str, str]] = {"sources": "it attends to one source per row"}
    reads_source = True

    part: PartSpec
    """The recurrence: rnn, lstm, gru, min_gru, or one of them in `init_from_encoder`."""
    look: PartSpec
    """The attention over the encoder: additive_attention, attention."""
    gives: Literal["state", "state_and_context"] = "state"
    """The output: the state, or the state and the context vector, half of the width each (GNMT)."""

    def build(self, site: Site) -> "AttentionFedPart":
        if not site.causal:
            raise SpecError(
                "attention_fed attends to an encoder, so it works in a decoder only. Use its part alone in an encoder."
            )
        return AttentionFedPart(self, site)

    @classmethod
    def examples(cls) -> "tuple[AttentionFed, ...]":
        look, mix = kind_of(PartSpec, "additive_attention")(), kind_of(PartSpec, "min_gru")()
        gru, lstm = kind_of(PartSpec, "gru")(), kind_of(PartSpec, "lstm")()
        both = cls(part=lstm, look=look, gives="state_and_context")
        return (cls(part=mix, look=look), cls(part=gru, look=look), both)


class Looking(NamedTuple):
    """The cell's state, the state of the attention over the source, and the initial state of a row."""

    cell: State
    source: State
    fresh: State


class AttentionFedPart(Part):
    def __init__(self, spec: AttentionFed, site: Site):
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
            raise SpecError(f"{spec.part.kind} has no state that can be a query. Use rnn, lstm, gru or min_gru.")
        if self.part.summary[0] != width:
            raise SpecError(
                f"the state has {self.part.summary[0]} units, the attention is {width} wide. Leave `hidden` out."
            )
        self.context = Tap()

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> Looking:
        cell = self.part.init_state(batch, max_len, memory)
        return Looking(cell, self.look.init_state(batch, max_len, memory), tree_map(torch.clone, cell))

    def forward(self, x: Tensor, frame: Frame, state: Looking | None = None) -> Out:
        if frame.memory is not None and frame.memory.segments is not None:
            raise SpecError("attention_fed: several sources in a row. Use one source a row: data.packing = bucket.")
        cell, source, fresh = state or self.init_state(x.shape[0], x.shape[1], frame.memory)
        begins, frame, outputs = frame.document_starts(x, state), frame.with_positions(x), []
        for t in range(x.shape[1]):
            here = frame.at_step(t)
            if begins is not None:  # the query of a new document is the initial state
                cell = tree_map(partial(torch.where, begins[:, t, None]), fresh, cell)
            query = tree_leaves(cell)[0][:, None].to(x.dtype)
            context = self.look(query, here, source).y
            out = self.part(torch.cat((x[:, t : t + 1], context), dim=-1), here, cell)
            cell = out.state
            outputs.append(torch.cat((out.y, context), dim=-1) if self.both else out.y)
        y = self.context(torch.cat(outputs, dim=1))
        return Out(y, None if state is None else Looking(cell, source, fresh))
