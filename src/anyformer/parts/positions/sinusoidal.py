"""Sines and cosines of many periods: a place as a fixed vector.

p_t[2k] = sin(w_k t), p_t[2k+1] = cos(w_k t),  w_k = base^(-2k/d)          (arXiv 1706.03762, section 3.5)
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from anyformer.core import Heads, Position, PositionSpec, Positive, Site
from anyformer.errors import SpecError


@dataclass(frozen=True, kw_only=True)
class Sinusoidal(PositionSpec, kind="sinusoidal"):
    """Sines and cosines of many periods, added to the token vectors."""

    base: Positive = 10_000.0
    """The slowest wave has a period of about 2 pi base tokens."""
    layout: Literal["interleaved", "halves"] = "interleaved"
    """sin, cos, sin, cos, ... as in the paper, or all sines then all cosines as in its code."""

    def build(self, site: Site, heads: Heads) -> "SinusoidalModule":
        width = heads.number * heads.channels
        if width % 2:
            raise SpecError(f"sinusoidal positions come in pairs; dim={width} is odd.")
        return SinusoidalModule(self, width)


class SinusoidalModule(Position):
    def __init__(self, spec: Sinusoidal, width: int):
        super().__init__()
        self.base, self.width, self.interleaved = spec.base, width, spec.layout == "interleaved"

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        # not a buffer: one would be rounded with a model that goes to half precision
        frequency = self.base ** (torch.arange(0, -self.width, -2, device=x.device) / self.width)
        angle = positions[..., None] * frequency  # [b t d/2]
        waves = (angle.sin(), angle.cos())
        table = torch.stack(waves, dim=-1).flatten(-2) if self.interleaved else torch.cat(waves, dim=-1)
        return x + table.type_as(x)
