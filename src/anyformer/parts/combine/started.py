"""A recurrence that begins where the encoder ended: the plain recurrent translator, whose halves meet in one state.

h_0 = the final state of the encoder's recurrent part of the same layer, or of its last one          (arXiv 1409.3215)
bridge = "project": h_0 = tanh(W h_final), which may change the width          (arXiv 1409.0473)
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from anyformer.core import Frame, Linear, Memory, Out, Part, PartSpec, Site, State, kind_of
from anyformer.errors import SpecError, at


@dataclass(frozen=True, kw_only=True)
class Started(PartSpec, kind="started"):
    """Lets a recurrence of the decoder begin with the state in which the encoder's recurrence ended."""

    limits: ClassVar[Mapping[str, str]] = {"packing": "a row has one source, and so one state to begin with"}

    part: PartSpec
    """A part that sums up what it has read: rnn, lstm, gru, min_gru."""
    bridge: Literal["same", "project"] = "same"
    """The encoder's state as it is, or through a matrix and a tanh."""

    def build(self, site: Site) -> "StartedPart":
        if site.source == "memory" or not site.causal:
            raise SpecError("started begins a decoder where its encoder ended; leave it out in an encoder.")
        return StartedPart(self, site)

    @classmethod
    def examples(cls) -> "tuple[Started, ...]":
        return (cls(part=kind_of(PartSpec, "gru")()), cls(part=kind_of(PartSpec, "gru")(), bridge="project"))


class Begun(NamedTuple):
    """`now` is what it carries; `origin` what a row begins with."""

    now: State
    origin: State


class StartedPart(Part):
    def __init__(self, spec: Started, site: Site):
        super().__init__()
        self.layer = site.layer
        with at("part"):
            self.part = spec.part.build(site)
        if self.part.summary is None:
            raise SpecError(f"{spec.part.kind} has no state that sums up. Use rnn, lstm, gru or min_gru.")
        self.width, self.summary = self.part.width, self.part.summary
        self.bridges = nn.ModuleList()
        if spec.bridge == "project":
            source = site.memory_dim or site.dim
            vectors = len(tree_leaves(self.part.init_state(1, 1)))
            self.bridges.extend(Linear(source, self.part.summary, role="in", bias=True) for _ in range(vectors))

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> Begun:
        origin = self._origin(batch, memory)
        return Begun(origin, tree_map(torch.clone, origin))  # two tensors each: a state is written in place

    def forward(self, x: Tensor, frame: Frame, state: Begun | None = None) -> Out:
        if frame.segments is not None:
            raise SpecError(
                "started: several documents in a row have one source. Use one document a row: data.packing = bucket."
            )
        if state is None:
            now = origin = self._origin(x.shape[0], frame.memory)
        else:
            now, origin = state
            begins = frame.positions_for(x) == 0 if frame.valid is None else (frame.positions_for(x) == 0) & frame.valid
            rows = begins.any(1, keepdim=True).expand(x.shape[0], 1)
            now = tree_map(lambda old, first: torch.where(rows, first, old), now, origin)
        # one place on, so that the first token finds this state and does not forget it
        inside = replace(frame, positions=(frame.positions_for(x) + 1).expand(x.shape[:2]))
        out = self.part(x, inside, now)
        return out._replace(state=None if state is None else Begun(out.state, origin))

    def _origin(self, batch: int, memory: Memory | None) -> State:
        if memory is None or not memory.final:
            raise SpecError(
                "started needs an encoder with a recurrence that ends in a state: one_way or bidirectional around rnn, "
                "lstm, gru or min_gru."
            )
        given = tree_leaves(memory.final[min(self.layer, len(memory.final) - 1)])
        own, tree = tree_flatten(self.part.init_state(batch, 1))
        if len(given) != len(own):
            raise SpecError(f"started: the encoder's state has {len(given)} vectors, this part's has {len(own)}.")
        if self.bridges:
            given = [
                bridge(leaf.to(bridge.weight.dtype)).tanh() for bridge, leaf in zip(self.bridges, given, strict=True)
            ]
        for theirs, mine in zip(given, own, strict=True):
            if theirs.shape != mine.shape:
                raise SpecError(
                    f"started: the encoder ends with {theirs.shape[1]} units, this part has {mine.shape[1]}. "
                    f'Make them equal, or set bridge = "project".'
                )
        return tree_unflatten([leaf.to(mine.dtype) for leaf, mine in zip(given, own, strict=True)], tree)
