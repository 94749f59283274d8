"""Rotary positions: queries and keys are rotated by their position, so that a score depends only on the distance.

(x_1, x_2) -> (x_1 cos a - x_2 sin a, x_2 cos a + x_1 sin a),  a = t base^(-2k/c)          (arXiv 2104.09864)
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.core import Heads, Position, PositionSpec, Positive, Site
from anyformer.errors import SpecError
from anyformer.ops.fused import rotate


@dataclass(frozen=True, kw_only=True)
class Rope(PositionSpec, kind="rope"):
    """Rotary positions: pairs of channels of queries and keys are rotated by angles that grow with the position."""

    base: Positive = 10_000.0
    """The slowest wave has a period of about 2 pi base tokens."""

    def build(self, site: Site, heads: Heads) -> "RopeModule":
        if heads.channels % 2:
            raise SpecError(f"rope turns pairs of channels; a head has {heads.channels}, an odd number.")
        return RopeModule(self, heads.channels)


class RopeModule(Position):
    per_head = False

    def __init__(self, spec: Rope, channels: int):
        super().__init__()
        self.base, self.c = spec.base, channels

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        # not a buffer: one would be rounded with a model that goes to half precision, and rotate by wrong angles
        frequency = self.base ** (torch.arange(0, -self.c, -2, device=x.device) / self.c)
        return rotate(x, positions, frequency)
