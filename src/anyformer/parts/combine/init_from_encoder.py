"""A recurrence of the decoder that is initialised with the encoder's final state, as in sequence-to-sequence LSTMs.

h_0 = the final state of the encoder's last recurrent part in the same layer, or else in its last      (arXiv 1409.3215)
bridge = "project": h_0 = tanh(W h_final), which may change the width          (arXiv 1409.0473)
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from anyformer.core import Frame, Linear, Memory, Out, Part, PartSpec, Site, State, fork, kind_of
from anyformer.core.module import Widths
from anyformer.errors import SpecError, at


@dataclass(frozen=True, kw_only=True)
class InitFromEncoder(PartSpec, kind="init_from_encoder"):
    """Initialises a recurrence of the decoder with the final state of the encoder's recurrence."""

    limits: ClassVar[Mapping[str, str]] = {"packing": "a row has one source and so one initial state"}
    reads_source = True

    part: PartSpec
    """A recurrence whose state is a few vectors: rnn, lstm, gru, min_gru."""
    bridge: Literal["same", "project"] = "same"
    """same: the encoder's state unchanged; project: through a linear layer and tanh."""

    def build(self, site: Site) -> "InitFromEncoderPart":
        if not site.causal:
            raise SpecError("init_from_encoder initialises a decoder from its encoder. Leave it out in an encoder.")
        if any(isinstance(inner, InitFromEncoder) for _, inner in self.part.walk()):
            raise SpecError("init_from_encoder inside init_from_encoder: leave one of them out.")
        return InitFromEncoderPart(self, site)

    @classmethod
    def examples(cls) -> "tuple[InitFromEncoder, ...]":
        return (cls(part=kind_of(PartSpec, "gru")()), cls(part=kind_of(PartSpec, "gru")(), bridge="project"))


class Begun(NamedTuple):
    """The current state of the recurrence, and `origin`, the initial state of a row."""

    now: State
    origin: State


class InitFromEncoderPart(Part):
    def __init__(self, spec: InitFromEncoder, site: Site):
        super().__init__()
        with at("part"):
            self.part = spec.part.place(site)
        if not self.part.summary:
            raise SpecError(f"{spec.part.kind} has no recurrent state to initialise. Use rnn, lstm, gru or min_gru.")
        self.width, self.summary = self.part.width, self.part.summary
        self.index, ended = _matching_state(site)
        if len(ended) != len(self.summary):
            both = (
                f"the encoder's state has {len(ended)} vectors, the state of {spec.part.kind} has {len(self.summary)}"
            )
            raise SpecError(f"{both}. Use the same recurrence on both sides.")
        if spec.bridge == "same" and ended != self.summary:
            both = f"the encoder ends with {ended[0]} units, {spec.part.kind} has {self.summary[0]}"
            raise SpecError(f'{both}. Make them equal, or set bridge = "project".')
        self.bridges = nn.ModuleList()
        if spec.bridge == "project":
            widths = zip(ended, self.summary, strict=True)
            self.bridges.extend(Linear(source, target, role="in", bias=True) for source, target in widths)

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> Begun:
        origin = self._origin(batch, memory)
        return Begun(fork(origin), fork(origin))  # a state is written in place, the encoder's final state must not be

    def forward(self, x: Tensor, frame: Frame, state: Begun | None = None) -> Out:
        if frame.segments is not None:
            raise SpecError(
                "init_from_encoder: several documents in a row have one source. Use one a row: data.packing = bucket."
            )
        if state is None:
            now = origin = self._origin(x.shape[0], frame.memory)
        else:
            now, origin = state
            begins = frame.positions_for(x) == 0 if frame.valid is None else (frame.positions_for(x) == 0) & frame.valid
            rows = begins.any(1, keepdim=True).expand(x.shape[0], 1)
            now = tree_map(lambda old, first: torch.where(rows, first, old), now, origin)
        # Positions are shifted by one: at position 0 the recurrence would reset its state.
        inside = replace(frame, positions=(frame.positions_for(x) + 1).expand(x.shape[:2]))
        out = self.part(x, inside, now)
        return out._replace(state=None if state is None else Begun(out.state, origin))

    def _origin(self, batch: int, memory: Memory | None) -> State:
        if memory is None or not memory.final:
            raise SpecError(
                "init_from_encoder needs the encoder's final states: put the output of encode in frame.memory."
            )
        ended = tree_leaves(memory.final[self.index])
        if self.bridges:
            pairs = zip(self.bridges, ended, strict=True)
            ended = [bridge(vector.to(bridge.weight.dtype)).tanh() for bridge, vector in pairs]
        empty, tree = tree_flatten(self.part.init_state(batch, 1))
        return tree_unflatten([vector.to(like.dtype) for vector, like in zip(ended, empty, strict=True)], tree)


def _matching_state(site: Site) -> tuple[int, Widths]:
    """Index in `Memory.final` and widths: the last recurrence of the encoder's layer of the same number; the last of
    all if that layer has none."""
    layers = site.final_widths
    if not any(layers):
        raise SpecError(
            "init_from_encoder needs an encoder with a recurrence that ends in a state: "
            "unidirectional or bidirectional around rnn, lstm, gru or min_gru."
        )
    same = layers[: site.layer + 1] if site.layer < len(layers) and layers[site.layer] else layers
    states = [widths for layer in same for widths in layer]
    return len(states) - 1, states[-1]
