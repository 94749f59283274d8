"""Lengthens the encoder's input with empty positions, for targets that are longer than their source.

|t| = a |s| + b          (ByteNet's dynamic unfolding, arXiv 1610.10099, section 3.3: a = 1.2 for German from English)
It comes before the layers of an encoder and is joined by `replace`; the new positions hold zeros.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Annotated, ClassVar, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core import Amount, Frame, Out, Part, PartSpec, Range, Site
from anyformer.errors import SpecError
from anyformer.ops.padding import compact, take

Lengths = TypeVar("Lengths", int, Tensor)


@dataclass(frozen=True, kw_only=True)
class Unfold(PartSpec, kind="unfold"):
    """Lengthens the encoder's input with empty positions, so that it covers a longer target."""

    limits: ClassVar[Mapping[str, str]] = {
        "causal": "the length of a decoder's output is not fixed in advance",
        "sources": "only a row that is one document from place 0 on can be lengthened",
    }

    ratio: Annotated[float, Range(low=1.0)] = 1.2
    """Maximum length of the target divided by the length of the source."""
    more: Amount = 0
    """Number of additional positions."""

    def build(self, site: Site) -> "UnfoldPart":
        if site.causal:
            raise SpecError(
                "unfold lengthens the source: make it the part of a branch in an encoder, not in a decoder, nor inside "
                "unidirectional or bidirectional."
            )
        return UnfoldPart(self)

    @classmethod
    def examples(cls) -> "tuple[Unfold, ...]":
        return ()  # it changes the length, which no other part in the same place could follow


class UnfoldPart(Part):
    changes_length = True

    def __init__(self, spec: Unfold):
        super().__init__()
        # the ratio as written (1.2 is 6/5): integers round the same way for one row and for a padded batch
        self.ratio, self.more = Fraction(str(spec.ratio)).limit_denominator(10**6), spec.more

    def lengthened(self, lengths: Lengths) -> Lengths:
        """ceil(ratio * lengths) + more, exactly."""
        return -(-lengths * self.ratio.numerator // self.ratio.denominator) + self.more

    def forward(self, x: Tensor, frame: Frame, state: tuple[()] | None = None) -> Out:
        if frame.segments is not None or frame.positions is not None:
            raise SpecError(
                "unfold: only a row that is one document from place 0 on can be lengthened. Set data.packing = bucket."
            )
        added = self.lengthened(x.shape[1]) - x.shape[1]
        valid = frame.valid
        if valid is not None:
            order, lengths = compact(valid), self.lengthened(valid.sum(1, keepdim=True))
            x = take(x.masked_fill(~valid[..., None], 0.0), order.order)
            valid = torch.arange(x.shape[1] + added, device=x.device) < lengths
        longer = replace(frame, valid=valid, types=None, place=None, layout=None)
        return Out(F.pad(x, (0, 0, 0, added)), state, frame=longer)
