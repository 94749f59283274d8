"""XLNet's attention: in both directions inside a segment, and to the hidden states of the segment before.

q from h_t ;  k, v from [SG(m) ; h_1 .. h_T]        m: the layer's inputs for the last tokens before the segment
Every token sees all of m, and of its segment what the mask rule allows: under `permutation` that is what the order
puts before it. Queries of a permutation (`stream` 1) are seen by none and never stored.          (arXiv 1906.08237)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from anyformer.core import Call, Chance, Count, Linear, Out, Part, PartSpec, Site, Tap
from anyformer.core.frame import Frame, Marks, Memory
from anyformer.core.masks import Full, MaskRule
from anyformer.core.part import Heads, PositionSpec
from anyformer.errors import SpecError
from anyformer.ops.attention.attend import Taps, attend
from anyformer.ops.attention.call import Keys
from anyformer.ops.padding import take
from anyformer.parts.positions.xl import XL


@dataclass(frozen=True, kw_only=True)
class SegmentMemory(PartSpec, kind="segment_memory"):
    """Attention in both directions, with a memory of the layer's last inputs, handed from segment to segment."""

    perspective = "efficiency"
    limits: ClassVar[Mapping[str, str]] = {"causal": "a token sees all of its segment"}

    heads: Count = 4
    """Number of heads."""
    memory: Count = 128
    """Number of tokens before the segment that each of its tokens sees."""
    mask: MaskRule | None = None
    """Which tokens see each other, the memory included; all if not given. `permutation` allows all of the memory."""
    position: PositionSpec | None = None
    """A relative scheme that acts inside attention; `xl` if not given."""
    dropout: Chance = 0.0
    """Dropout on the attention weights."""

    def build(self, site: Site) -> "SegmentMemoryPart":
        if site.causal:
            raise SpecError("segment_memory sees all of a segment. Use it in an encoder, or transformer_xl.")
        return SegmentMemoryPart(self, site)

    @classmethod
    def examples(cls) -> "tuple[SegmentMemory, ...]":
        return (cls(memory=5),)


class Past(NamedTuple):
    """The layer's inputs for the last tokens, in order; empty slots come first."""

    x: Tensor
    """[b m d]"""
    positions: Tensor
    """[b m]; -1: empty."""


class SegmentMemoryPart(Part):
    def __init__(self, spec: SegmentMemory, site: Site):
        super().__init__()
        self.h, self.c, self.memory = spec.heads, site.head_width(spec.heads), spec.memory
        self.rule, self.scale, self.dropout = spec.mask or Full(), self.c**-0.5, spec.dropout
        self.pair_flops = 4 * site.dim  # a score and a weighted value in every head
        self.q = Linear(site.dim, site.dim, role="query", heads=self.h)
        self.kv = Linear(site.dim, (site.dim, site.dim), role=("key", "value"), heads=self.h)
        self.out = Linear(site.dim, site.dim, role="out")
        self.position = (spec.position or XL()).build_for_scores(site, Heads(self.h, self.c, self.scale))
        self.pattern = Tap()

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> Past:
        self.position.check_length(max_len)
        x = self.out.weight.new_zeros(batch, self.memory, self.out.weight.shape[0])
        return Past(x, torch.full(x.shape[:2], -1, dtype=torch.long, device=x.device))

    def forward(self, x: Tensor, frame: Frame, state: Past | None = None) -> Out:
        marks = frame.marks_for(x)
        if state is None:
            return Out(self._attend(x, marks, x, marks, frame.valid, plain=frame.plain))
        if frame.positions is None or frame.segments is not None:
            raise SpecError("a state takes one document a row: set frame.positions, and no frame.segments.")
        live = torch.ones_like(frame.positions, dtype=torch.bool) if frame.valid is None else frame.valid
        content = live if marks.stream is None else live & (marks.stream == 0)
        begins = (content & (frame.positions == 0)).any(1, keepdim=True)  # forget what another document left
        past = state.positions.masked_fill(begins, -1)
        seen = torch.cat((state.x.type_as(x), x), dim=1)
        valid = torch.cat((past >= 0, live), dim=1)
        y = self._attend(x, marks, seen, _with_past(marks, past), valid)
        return Out(y, self._updated(seen, torch.cat((past, frame.positions.where(content, -1)), dim=1), state))

    def _attend(
        self, x: Tensor, q_marks: Marks, seen: Tensor, k_marks: Marks, valid: Tensor | None, *, plain: bool = False
    ) -> Tensor:
        q = self.q(x).unflatten(-1, (self.h, self.c))  # [b t h c]
        k, v = self.kv(seen).unflatten(-1, (2 * self.h, self.c)).chunk(2, dim=2)  # [b s h c]
        q, k = self.position.rotate(q, q_marks.position), self.position.rotate(k, k_marks.position)
        keys, dropout = Keys(k, v, k_marks, valid, plain), self.dropout if self.training else 0.0
        y = attend(
            q, q_marks, keys, rule=self.rule, scale=self.scale, taps=Taps(self.pattern), position=self.position,
            dropout=dropout,
        )  # fmt: skip
        return self.out(y.flatten(2))

    def _updated(self, seen: Tensor, positions: Tensor, state: Past) -> Past:
        """The last tokens with a position, in new tensors: a backward pass may still need the old ones."""
        order = (positions >= 0).byte().argsort(dim=1, stable=True)[:, -self.memory :]
        return Past(take(seen.detach(), order).to(state.x.dtype), take(positions, order))

    def core_flops(self, call: Call) -> tuple[int, int]:
        keys = call.length + (self.memory if call.past else 0)  # empty slots are masked, not left out
        products = call.batch * self.pair_flops * self.rule.pairs(call.length, keys)
        forward, backward = self.position.head_flops(call, keys)
        return products + forward, 2 * products + backward


def _with_past(marks: Marks, past: Tensor) -> Marks:
    """Marks of the memory and of the tokens: in a permuted order the memory comes first, and its type is 0."""

    def joined(before: int, mark: Tensor | None) -> Tensor | None:
        return None if mark is None else torch.cat((torch.full_like(past, before), mark), dim=1)

    return Marks(
        position=torch.cat((past, marks.position), dim=1),
        order=joined(-1, marks.order),
        stream=joined(0, marks.stream),
        prefix=marks.prefix,
        type=joined(0, marks.type),
    )
