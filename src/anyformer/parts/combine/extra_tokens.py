"""Extra tokens: learned vectors in front of the encoder's sequence, which stand for no word of the text.

y = [e_1 .. e_n, x_1 .. x_T]          (BigBird, arXiv 2007.14062, section 2: the extended transformer construction, ETC)
With the mask `global_tokens` of the same number in the layers behind it, these tokens see all and are seen by all; in
the internal construction (ITC) the first words of the text do so. As a branch it is joined by `replace`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core import Count, Frame, Out, Part, PartSpec, Site, param
from anyformer.errors import SpecError


@dataclass(frozen=True, kw_only=True)
class ExtraTokens(PartSpec, kind="extra_tokens"):
    """Puts learned tokens in front of an encoder's sequence, such as global ones for a sparse mask."""

    perspective = "efficiency"
    limits: ClassVar[Mapping[str, str]] = {
        "causal": "a token in front that sees the text would show it to earlier words",
        "sources": "tokens can be put in front only of a row that is one document from place 0 on",
    }

    tokens: Count = 1
    """How many tokens are put in front."""

    def build(self, site: Site) -> "ExtraTokensPart":
        if site.causal:
            raise SpecError(
                "extra_tokens is for tokens that see the whole text: make it the part of a branch in an encoder, not "
                "in a decoder, nor inside unidirectional or bidirectional."
            )
        return ExtraTokensPart(self.tokens, site.dim)

    @classmethod
    def examples(cls) -> "tuple[ExtraTokens, ...]":
        return (cls(tokens=2),)


class ExtraTokensPart(Part):
    changes_length = True

    def __init__(self, tokens: int, dim: int):
        super().__init__()
        self.vectors = param((tokens, dim), "embed")

    def forward(self, x: Tensor, frame: Frame, state: tuple[()] | None = None) -> Out:
        if frame.segments is not None or frame.positions is not None:
            raise SpecError(
                "extra_tokens: tokens can be put in front only of a row that is one document from place 0 on. "
                "Set data.packing = bucket."
            )
        y = torch.cat((self.vectors.type_as(x).expand(x.shape[0], -1, -1), x), dim=1)
        valid = None if frame.valid is None else F.pad(frame.valid, (len(self.vectors), 0), value=True)
        return Out(y, state, frame=replace(frame, valid=valid, types=None, place=None, layout=None))
