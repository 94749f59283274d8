"""Transparent attention: a layer of the decoder attends to its own mean of all layers of the encoder.

z = sum_{n=0..N} s_n h_n ;  s = softmax(dropout(w))          (arXiv 1808.07561, section 4)
h_0 is the input of the encoder's first layer, h_N its output as any cross-attention reads it. Each layer m of the
decoder has weights w of its own, the column m of the paper's matrix W.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from anyformer.core import Chance, Frame, Memory, Out, Part, PartSpec, Site, State, Tap, kind_of, param
from anyformer.errors import SpecError, at


@dataclass(frozen=True, kw_only=True)
class Transparent(PartSpec, kind="transparent"):
    """Lets a part attend to a learned mean of all layers of the encoder, from its embeddings to its output."""

    sources = ("self", "memory")
    reads_source = True
    needs_source_layers = True

    part: PartSpec
    """The inner part, such as attention."""
    dropout: Chance = 0.0
    """Dropout on the weights of the layers, before their softmax."""

    def build(self, site: Site) -> "TransparentPart":
        if not site.final_widths:
            raise SpecError("transparent needs an encoder whose layers it can read: put it into an encoder_decoder.")
        return TransparentPart(self, site)

    @classmethod
    def examples(cls) -> "tuple[Transparent, ...]":
        return (cls(part=kind_of(PartSpec, "attention")()),)


class TransparentPart(Part):
    def __init__(self, spec: Transparent, site: Site):
        super().__init__()
        with at("part"):
            self.part = spec.part.place(replace(site, source="memory"))
        self.dropout = spec.dropout
        self.weights = param((len(site.final_widths) + 1,), "scalar")
        self.shares = Tap()

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> State:
        return self.part.init_state(batch, max_len, self._mixed(memory))

    def forward(self, x: Tensor, frame: Frame, state: State | None = None) -> Out:
        # With a state, the keys of the mean are in it.
        return self.part(x, replace(frame, memory=self._mixed(frame.memory)) if state is None else frame, state)

    def _mixed(self, memory: Memory | None) -> Memory:
        if memory is None or len(memory.layers) != len(self.weights):
            raise SpecError(
                f"transparent reads {len(self.weights)} outputs of an encoder from frame.memory, all of one length. "
                "Put the output of encode there, and no part that changes the length into the encoder."
            )
        shares = self.shares(torch.dropout(self.weights, self.dropout, self.training).softmax(0))
        x = shares[0] * memory.layers[0]
        for share, layer in zip(shares[1:], memory.layers[1:], strict=True):
            x = x + share * layer
        return replace(memory, x=x.type_as(memory.x))
