"""Transformer-XL: attention that reaches across the edge of a segment, to the hidden states of the one before.

q from h_t ;  k, v from [SG(h_{t-m}) .. SG(h_{s-1}) ; h_s .. h_t] for a segment that begins at s    (arXiv 1901.02860)
The state holds the *inputs* of this layer, detached (SG), so that the key and value matrices still learn from them. A
token sees m tokens before it wherever segments are cut; n layers see n m tokens back.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from anyformer.core.fields import Count
from anyformer.core.frame import Frame, Marks, Memory
from anyformer.core.masks import Causal
from anyformer.core.module import Call, Linear, Site, Tap
from anyformer.core.part import Heads, Out, Part, PartSpec, PositionSpec
from anyformer.ops.attention.attend import Taps, attend
from anyformer.ops.attention.call import Keys
from anyformer.parts.masks.window import Window
from anyformer.parts.positions.rope import Rope
from anyformer.parts.positions.xl import XL


@dataclass(frozen=True, kw_only=True)
class TransformerXL(PartSpec, kind="transformer_xl"):
    """Causal attention with a memory of the layer's last inputs, handed from segment to segment."""

    perspective = "efficiency"
    causal_only = True

    heads: Count = 4
    """Number of heads."""
    memory: Count = 128
    """Number of earlier tokens that a token sees."""
    position: PositionSpec | None = None
    """A relative scheme that acts inside attention; `xl` if not given."""
    bias: bool = False
    """Adds a learned bias to the projections."""

    def build(self, site: Site) -> "TransformerXLPart":
        return TransformerXLPart(self, site)

    @classmethod
    def examples(cls) -> "tuple[TransformerXL, ...]":
        return (cls(memory=5), cls(memory=40, bias=True, position=Rope()))


class Ring(NamedTuple):
    """A ring buffer of the last inputs: slot = position modulo m; one spare slot takes what is not stored."""

    x: Tensor
    """[b m+1 d]"""
    positions: Tensor
    """[b m+1]; -1: empty."""


class TransformerXLPart(Part):
    def __init__(self, spec: TransformerXL, site: Site):
        super().__init__()
        self.h, self.c, self.memory = spec.heads, site.head_width(spec.heads), spec.memory
        self.scale = self.c**-0.5
        self.pair_flops = 4 * self.h * self.c  # a score and a weighted value in every head
        self.rule = Window(size=spec.memory + 1) & Causal()
        self.q = Linear(site.dim, site.dim, role="query", bias=spec.bias, heads=self.h)
        self.kv = Linear(site.dim, (site.dim, site.dim), role=("key", "value"), bias=spec.bias, heads=self.h)
        self.out = Linear(site.dim, site.dim, role="out", bias=spec.bias)
        self.position = (spec.position or XL()).build_for_scores(site, Heads(self.h, self.c, self.scale))
        self.pattern = Tap()

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> Ring:
        self.position.check_length(max_len)
        x = self.out.weight.new_zeros(batch, self.memory + 1, self.out.weight.shape[0])
        return Ring(x, torch.full(x.shape[:2], -1, dtype=torch.long, device=x.device))

    def forward(self, x: Tensor, frame: Frame, state: Ring | None = None) -> Out:
        if state is None:
            marks = frame.marks_for(x)
            return Out(self._attend(x, x, marks, marks, frame.valid, plain=frame.plain))
        begins = frame.document_starts(x, state)
        assert begins is not None and frame.positions is not None
        document = begins.cumsum(1)  # [b t]: 0 continues the document in the state
        past = torch.where(state.positions >= 0, 0, -1)[:, :-1]
        q = Marks(frame.positions, document)
        k = Marks(torch.cat((state.positions[:, :-1], q.position), dim=1), torch.cat((past, document), dim=1))
        valid = None if frame.valid is None else torch.cat((past == 0, frame.valid), dim=1)
        seen = torch.cat((state.x[:, :-1].type_as(x), x), dim=1)
        return Out(self._attend(x, seen, q, k, valid), self._updated(x, frame, document, state))

    def _attend(
        self, x: Tensor, seen: Tensor, q_marks: Marks, k_marks: Marks, valid: Tensor | None, *, plain: bool = False
    ) -> Tensor:
        q = self.q(x).unflatten(-1, (self.h, self.c))  # [b t h c]
        k, v = self.kv(seen).unflatten(-1, (2 * self.h, self.c)).chunk(2, dim=2)  # [b s h c]
        q, k = self.position.rotate(q, q_marks.position), self.position.rotate(k, k_marks.position)
        keys, taps = Keys(k, v, k_marks, valid, plain), Taps(self.pattern)
        y = attend(q, q_marks, keys, rule=self.rule, scale=self.scale, taps=taps, position=self.position)
        return self.out(y.flatten(2))

    def _updated(self, x: Tensor, frame: Frame, document: Tensor, state: Ring) -> Ring:
        """The state after this call, in new tensors: a backward pass may still need the old ones."""
        assert frame.positions is not None
        last = document[:, -1:]
        live = document == last if frame.valid is None else (document == last) & frame.valid
        newest = frame.positions.where(live, -1).amax(1, keepdim=True)
        slots = (frame.positions % self.memory).where(live & (frame.positions > newest - self.memory), self.memory)
        rows = torch.arange(x.shape[0], device=x.device)[:, None]
        old = state.positions.masked_fill(last > 0, -1)  # clear inputs of another document
        positions = old.index_put((rows, slots), frame.positions)
        return Ring(state.x.index_put((rows, slots), x.detach().to(state.x.dtype)), positions)

    def core_flops(self, call: Call) -> tuple[int, int]:
        keys = call.length + (self.memory if call.past else 0)  # empty slots are masked, not left out
        products = call.batch * self.pair_flops * self.rule.pairs(call.length, keys)
        forward, backward = self.position.head_flops(call, keys)
        return products + forward, 2 * products + backward
