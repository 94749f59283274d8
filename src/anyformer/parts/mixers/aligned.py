"""A decoder that stands on its encoder: every token takes the encoder's vector of its own place.

y_t = m_t for t < |m|, 0 beyond          (ByteNet, arXiv 1610.10099, section 3.2)
No softmax and no search: what the decoder needs from elsewhere it sees through its own convolutions. Sources that are
shorter than their targets are lengthened by `unfold` in the encoder.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from anyformer.core import Frame, Linear, Memory, Out, Part, PartSpec, Site, Tap, fork, memory_of
from anyformer.errors import SpecError
from anyformer.ops.padding import compact, take


@dataclass(frozen=True, kw_only=True)
class Aligned(PartSpec, kind="aligned"):
    """Every token takes the encoder's vector of its own place, as in ByteNet; for `cross`."""

    sources = ("memory",)
    limits: ClassVar[Mapping[str, str]] = {"sources": "several sources in a row have no common places"}

    def build(self, site: Site) -> "AlignedPart":
        return AlignedPart(site)

    @classmethod
    def examples(cls) -> "tuple[Aligned, ...]":
        return ()  # the output does not depend on x, so a norm before it has no gradient; tested in whole models


class Columns(NamedTuple):
    """The encoder's vectors from place 0 on, and how many there are."""

    x: Tensor
    lengths: Tensor


class AlignedPart(Part):
    def __init__(self, site: Site):
        super().__init__()
        source = site.memory_dim or site.dim
        self.out = Linear(source, site.dim, role="out") if source != site.dim else None
        self.columns = Tap()

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> Columns:
        return fork(self._columns(memory))  # a state is written in place, the encoder's output must not be

    def _columns(self, memory: Memory | None) -> Columns:
        memory = memory_of(memory, "aligned")
        if memory.segments is not None:
            raise SpecError(
                "aligned: several sources in a row have no common places. Use one source a row: data.packing = bucket."
            )
        x = memory.x if self.out is None else self.out(memory.x)
        if memory.valid is None:
            return Columns(x, torch.full_like(x[:, 0, 0], x.shape[1], dtype=torch.long))
        order = compact(memory.valid)
        return Columns(take(x, order.order), order.lengths)

    def forward(self, x: Tensor, frame: Frame, state: Columns | None = None) -> Out:
        columns, lengths = state or self._columns(frame.memory)
        places = frame.positions_for(x).expand(x.shape[:2])
        vectors = take(columns, places.clamp(max=columns.shape[1] - 1))
        return Out(self.columns(vectors.masked_fill((places >= lengths[:, None])[..., None], 0.0)), state)
