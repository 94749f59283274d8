"""Attention that shortens the encoder's sequence: its queries are means of tokens, its keys the tokens themselves.

y = p + part(queries n(p), keys and values n(x)) ;  p_i = (x_{2i} + x_{2i+1}) / 2
                                                                  (Funnel-Transformer, arXiv 2006.03236, section 2.2)
The residual connection and the norm n are inside, because the stream has two lengths here: as a branch it is joined by
`replace` and has no norm. The inner part attends as to another sequence, so that it takes no position scheme.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from torch import Tensor

from anyformer.core import Frame, Memory, NormSpec, Out, Part, PartSpec, Range, Site, kind_of
from anyformer.errors import SpecError, at
from anyformer.ops.mean_pooling import mean_pool
from anyformer.parts.norms.rms import RMSNorm


@dataclass(frozen=True, kw_only=True)
class PooledQueries(PartSpec, kind="pooled_queries"):
    """Shortens an encoder's sequence: means of tokens attend to all tokens, and go on with what they read."""

    perspective = "efficiency"
    limits: ClassVar[Mapping[str, str]] = {
        "causal": "a mean would hold a later token",
        "sources": "only a row that is one document from place 0 on can be shortened",
    }

    part: PartSpec
    """The inner part, such as attention."""
    norm: NormSpec = RMSNorm()
    """Normalises the inputs of the inner part."""
    by: Annotated[int, Range(low=2)] = 2
    """Number of tokens in a mean."""

    def build(self, site: Site) -> "PooledQueriesPart":
        if site.causal:
            raise SpecError(
                "pooled_queries reads later tokens: make it the part of a branch in an encoder, not in a decoder, nor "
                "inside unidirectional or bidirectional."
            )
        return PooledQueriesPart(self, site)

    @classmethod
    def examples(cls) -> "tuple[PooledQueries, ...]":
        return (cls(part=kind_of(PartSpec, "attention")()),)


class PooledQueriesPart(Part):
    changes_length = True

    def __init__(self, spec: PooledQueries, site: Site):
        super().__init__()
        self.by = spec.by
        with at("norm"):
            self.norm = spec.norm.build(site)
        with at("part"):
            self.part = spec.part.place(replace(site, source="memory", memory_dim=site.dim))

    def forward(self, x: Tensor, frame: Frame, state: tuple[()] | None = None) -> Out:
        if frame.segments is not None or frame.positions is not None:
            raise SpecError(
                "pooled_queries: only a row that is one document from place 0 on can be shortened. "
                "Set data.packing = bucket."
            )
        pooled, valid = mean_pool(x, frame.valid, self.by)
        shorter = replace(frame, valid=valid, types=None, place=None, layout=None)
        tokens = Memory(x=self.norm(x, frame), valid=frame.valid)
        out = self.part(self.norm(pooled, shorter), replace(shorter, memory=tokens))
        return Out(pooled + out.y, state, out.losses, shorter)
