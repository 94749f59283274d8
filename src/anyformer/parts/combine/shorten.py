"""Shortens the encoder's sequence: the mean of every two tokens goes on.

y_i = (x_{2i} + x_{2i+1}) / 2          (Funnel-Transformer, arXiv 2006.03236, section 2.2)
After the attention of a layer and joined by `replace`, it pools the attention's output and the residual stream alike,
as in the release of arXiv 2102.11972. In the paper only the queries are pooled: `pooled_queries`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from torch import Tensor

from anyformer.core import Frame, Out, Part, PartSpec, Range, Site
from anyformer.errors import SpecError
from anyformer.ops.mean_pooling import mean_pool


@dataclass(frozen=True, kw_only=True)
class Shorten(PartSpec, kind="shorten"):
    """Replaces every few tokens of an encoder by their mean, so that later layers and the decoder read fewer."""

    perspective = "efficiency"
    limits: ClassVar[Mapping[str, str]] = {
        "causal": "a mean would hold a later token",
        "sources": "only a row that is one document from place 0 on can be shortened",
    }

    by: Annotated[int, Range(low=2)] = 2
    """Number of tokens in a mean."""

    def build(self, site: Site) -> "ShortenPart":
        if site.causal:
            raise SpecError(
                "shorten reads later tokens: make it the part of a branch in an encoder, not in a decoder, nor inside "
                "unidirectional or bidirectional."
            )
        return ShortenPart(self.by)


class ShortenPart(Part):
    changes_length = True

    def __init__(self, by: int):
        super().__init__()
        self.by = by

    def forward(self, x: Tensor, frame: Frame, state: tuple[()] | None = None) -> Out:
        if frame.segments is not None or frame.positions is not None:
            raise SpecError(
                "shorten: only a row that is one document from place 0 on can be shortened. Set data.packing = bucket."
            )
        y, valid = mean_pool(x, frame.valid, self.by)
        return Out(y, state, frame=replace(frame, valid=valid, types=None, place=None, layout=None))
