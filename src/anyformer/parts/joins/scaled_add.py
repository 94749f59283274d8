"""The residual connection that keeps the variance: x' = (x + y) sqrt(1/2)          (ConvS2S, arXiv 1705.03122)"""

import math
from dataclasses import dataclass

from torch import Tensor

from anyformer.core import Join, JoinSpec, Site


@dataclass(frozen=True, kw_only=True)
class ScaledAdd(JoinSpec, kind="scaled_add"):
    """The residual connection that keeps the variance of the stream: (x + y) sqrt(1/2)."""

    def build(self, site: Site) -> "ScaledAddModule":
        return ScaledAddModule()


class ScaledAddModule(Join):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (x + y) * math.sqrt(0.5)
