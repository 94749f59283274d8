"""One vector for each segment of the encoder's sequence: the step from words to a document in a hierarchical model.

y_i = pool(x_{is} .. x_{is+s-1})          (HIBERT, arXiv 1905.06566, section 3.1, takes one token of each sentence)
Layers before it that see only their segment (attention with the mask `block_local` of the same size) encode the
segments; layers behind it encode the document, T / s vectors long. Attention then has T s + (T / s)^2 pairs in place of
T^2. As a branch it is joined by `replace`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from anyformer.core import Frame, Out, Part, PartSpec, Pool, PoolSpec, Range, Site
from anyformer.errors import SpecError, at
from anyformer.ops.padding import compact, cut, take
from anyformer.parts.pools.first import First
from anyformer.parts.pools.mean import Mean


@dataclass(frozen=True, kw_only=True)
class Summaries(PartSpec, kind="summaries"):
    """Replaces every segment of an encoder's sequence by one vector, so that later layers read a document of them."""

    perspective = "efficiency"
    limits: ClassVar[Mapping[str, str]] = {
        "causal": "a summary would hold a later token",
        "sources": "only a row that is one document from place 0 on can be cut into segments",
    }

    segment: Annotated[int, Range(low=2)] = 64
    """Tokens of a segment; the last one may be shorter."""
    pool: PoolSpec = Mean()
    """How a segment becomes one vector: first, mean, max, attention."""

    def build(self, site: Site) -> "SummariesPart":
        if site.causal:
            raise SpecError(
                "summaries reads later tokens: make it the part of a branch in an encoder, not in a decoder, nor "
                "inside unidirectional or bidirectional."
            )
        with at("pool"):
            return SummariesPart(self.segment, self.pool.build(site))

    @classmethod
    def examples(cls) -> "tuple[Summaries, ...]":
        return cls(segment=3), cls(segment=4, pool=First())


class SummariesPart(Part):
    changes_length = True

    def __init__(self, segment: int, pool: Pool):
        super().__init__()
        self.segment, self.pool = segment, pool

    def forward(self, x: Tensor, frame: Frame, state: tuple[()] | None = None) -> Out:
        if frame.segments is not None or frame.positions is not None:
            raise SpecError(
                "summaries: only a row that is one document from place 0 on can be cut into segments. "
                "Set data.packing = bucket."
            )
        valid = frame.valid
        if valid is not None:  # segments are counted in valid tokens, wherever padding lies
            order = compact(valid).order
            x, valid = take(x, order), take(valid, order)
        elif x.shape[1] % self.segment:
            valid = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        segments = cut(x, self.segment)  # [b n s d]
        valid_segments = None if valid is None else cut(valid, self.segment)  # [b n s]
        y = self.pool(
            segments.flatten(0, 1), Frame(valid=None if valid_segments is None else valid_segments.flatten(0, 1))
        )
        shorter = None if frame.valid is None or valid_segments is None else valid_segments.any(-1)
        frame = replace(frame, valid=shorter, types=None, place=None, layout=None)
        return Out(y.unflatten(0, segments.shape[:2]), state, frame=frame)
