"""A causal part run in both directions, as recurrences in an encoder.

y_t = [forward(x)_t ; backward(x)_t]          (Schuster and Paliwal 1997)
The backward direction reads every document from its end: padding and positions of packed documents are reversed too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from anyformer.core import Frame, Linear, Out, Part, PartSpec, Site, Tap, kind_of
from anyformer.core.part import add_losses
from anyformer.errors import SpecError, at


@dataclass(frozen=True, kw_only=True)
class Bidirectional(PartSpec, kind="bidirectional"):
    """Runs a causal part in both directions, each with its own weights."""

    sources = ("self", "memory")
    limits: ClassVar[Mapping[str, str]] = {"causal": "one direction reads the future"}

    part: PartSpec
    """The inner part; built twice."""
    merge: Literal["concatenate", "sum", "project"] = "concatenate"
    """Halves of the width side by side, for parts whose output may be half as wide (rnn, lstm, gru, conv, mamba, ...);
    the sum of both; or both in full, side by side, through a matrix."""
    reads: Literal["all", "own_half"] = "all"
    """all: each direction reads the whole stream. own_half: above another such layer that concatenates, each direction
    reads only the half of its own direction, so the two stay independent (ELMo, arXiv 1802.05365)."""

    def check(self) -> None:
        if self.reads == "own_half" and self.merge != "concatenate":
            raise SpecError(f'reads = "own_half" needs halves: merge = "concatenate", not "{self.merge}".')

    def build(self, site: Site) -> "BidirectionalPart":
        if site.causal:
            raise SpecError("bidirectional reads later tokens, which a causal stack must not. Use its part alone.")
        return BidirectionalPart(self, site)

    @classmethod
    def examples(cls) -> "tuple[Bidirectional, ...]":
        lstm, gru, look = (kind_of(PartSpec, kind)() for kind in ("lstm", "min_gru", "attention"))
        halves = cls(part=gru, reads="own_half")
        return (cls(part=lstm), cls(part=gru, merge="sum"), cls(part=look, merge="project"), halves)


class BidirectionalPart(Part):
    def __init__(self, spec: Bidirectional, site: Site):
        super().__init__()
        if spec.merge == "concatenate" and site.dim % 2:
            raise SpecError(f"dim={site.dim} has no halves to concatenate. Make it even, or merge by sum or project.")
        half = site.dim // 2 if spec.merge == "concatenate" else None
        self.halves = spec.reads == "own_half"
        place = replace(site, causal=True, width=half, dim=site.dim // 2 if self.halves else site.dim)
        with at("part"):
            self.ahead, self.back = spec.part.place(place), spec.part.place(place)
        if half and self.ahead.width != half:
            raise SpecError(f"{spec.part.kind} cannot give half of dim={site.dim}. Merge by sum or by project.")
        self.sums = spec.merge == "sum"
        self.project = Linear(2 * site.dim, site.dim, role="out") if spec.merge == "project" else None
        self.final_widths = tuple(
            tuple(width if self.sums else 2 * width for width in widths) for widths in self.ahead.read_widths
        )
        self.states = Tap()

    def forward(self, x: Tensor, frame: Frame, state: tuple[()] | None = None) -> Out:
        left, right = x.chunk(2, dim=-1) if self.halves else (x, x)
        ahead = self.ahead.read_to_end(left, frame)
        back = self.back.read_to_end(right.flip(1), frame.reversed(x))
        losses = add_losses(ahead.losses, back.losses)
        y = self.states(self._merged(ahead.y, back.y.flip(1)))
        final = tuple(tree_map(self._merged, *both) for both in zip(ahead.final, back.final, strict=True))
        return Out(y if self.project is None else self.project(y), state, losses, final=final)

    def _merged(self, ahead: Tensor, back: Tensor) -> Tensor:
        """The merged outputs, or final states, of both directions."""
        return ahead + back if self.sums else torch.cat((ahead, back), dim=-1)
