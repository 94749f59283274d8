"""A part that reads left to right, run in both directions: what an encoder makes of a recurrence.

y_t = [forward(x)_t ; backward(x)_t]          (Schuster and Paliwal 1997)
The second reads every document from its own end: padding and the places of packed documents are turned round with it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from anyformer.core import Frame, Linear, Out, Part, PartSpec, Site, Tap, decode
from anyformer.errors import SpecError, at
from anyformer.ops.scan import beginnings


@dataclass(frozen=True, kw_only=True)
class Bidirectional(PartSpec, kind="bidirectional"):
    """Runs a part that reads left to right in both directions, each with weights of its own."""

    limits: ClassVar[Mapping[str, str]] = {"causal": "one direction reads the future"}

    part: PartSpec
    """What reads; built twice."""
    merge: Literal["concatenate", "sum", "project"] = "concatenate"
    """Halves of the width side by side, for parts that can be asked for half of it (rnn, lstm, gru, min_gru); the sum
    of both; or both in full, side by side, through a matrix."""

    def build(self, site: Site) -> "BidirectionalPart":
        if site.causal:
            raise SpecError("bidirectional reads the future; use its part alone in a stack that must not see it.")
        return BidirectionalPart(self, site)

    @classmethod
    def examples(cls) -> "tuple[Bidirectional, ...]":
        lstm, gru, look = (decode(PartSpec, {"kind": kind}) for kind in ("lstm", "min_gru", "attention"))
        return (cls(part=lstm), cls(part=gru, merge="sum"), cls(part=look, merge="project"))


class BidirectionalPart(Part):
    def __init__(self, spec: Bidirectional, site: Site):
        super().__init__()
        if spec.merge == "concatenate" and site.dim % 2:
            raise SpecError(f"dim={site.dim} has no halves to concatenate. Make it even, or merge by sum or project.")
        half = site.dim // 2 if spec.merge == "concatenate" else None
        place = replace(site, causal=True, width=half)
        with at("part"):
            self.ahead, self.back = spec.part.build(place), spec.part.build(place)
        if half and self.ahead.width != half:
            raise SpecError(f"{spec.part.kind} cannot give half of dim={site.dim}. Merge by sum or by project.")
        self.sums = spec.merge == "sum"
        self.project = Linear(2 * site.dim, site.dim, role="out") if spec.merge == "project" else None
        self.states = Tap()

    def forward(self, x: Tensor, frame: Frame, state: tuple[()] | None = None) -> Out:
        ahead = self.ahead(x, frame)
        back = self.back(x.flip(1), turned(frame, x))
        both = ahead.y, back.y.flip(1)
        losses = {**ahead.losses, **{name: ahead.losses.get(name, 0.0) + loss for name, loss in back.losses.items()}}
        if self.sums:
            return Out(self.states(both[0] + both[1]), state, losses)
        y = self.states(torch.cat(both, dim=-1))
        return Out(y if self.project is None else self.project(y), state, losses)


def turned(frame: Frame, x: Tensor) -> Frame:
    """The frame of the same tokens read from the end, where every document's last valid token is at position 0."""
    if frame.valid is None and frame.types is None and frame.plain:
        return frame
    valid = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if frame.valid is None else frame.valid
    begins, rank = beginnings(frame, x), valid.cumsum(1)
    after = rank[:, -1:] + 1  # the rank of the token that begins the next document, or of one behind the last
    if begins is not None:
        ranks = rank.where(begins, after).flip(1).cummin(1).values.flip(1)
        after = torch.cat((ranks[:, 1:], after), dim=1)
    positions = (after - 1 - rank).clamp(min=0)
    return replace(
        frame,
        positions=positions.flip(1),
        valid=_flipped(frame.valid),
        segments=_flipped(frame.segments),
        types=_flipped(frame.types),
        order=_flipped(frame.order),
        stream=_flipped(frame.stream),
        blocks=None,
    )


def _flipped(mark: Tensor | None) -> Tensor | None:
    return None if mark is None else mark.flip(1)
