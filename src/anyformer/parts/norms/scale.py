"""Scale normalisation: every token gets the same length, and that one length is learned.

y = g x / |x|,  g a scalar that starts at sqrt(dim)          (arXiv 1910.05895)
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.core import Fill, Frame, Norm, NormSpec, Positive, Site, param
from anyformer.ops.devices import cast_like


@dataclass(frozen=True, kw_only=True)
class ScaleNorm(NormSpec, kind="scale"):
    """Scale normalisation: every token gets the same learned length."""

    eps: Positive = 1e-5
    """Least length to divide by."""

    def build(self, site: Site) -> "ScaleNormModule":
        return ScaleNormModule(self, site.dim)


class ScaleNormModule(Norm):
    def __init__(self, spec: ScaleNorm, dim: int):
        super().__init__()
        self.eps, self.dim = spec.eps, dim
        self.length = param((1,), "gain")  # one number with a dimension, since FSDP cannot shard a scalar

    def init(self, fill: Fill) -> None:
        self.length.fill_(self.dim**0.5)  # where root-mean-square normalisation starts

    def forward(self, x: Tensor, frame: Frame) -> Tensor:
        length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp(min=self.eps)
        return cast_like(x, x * (self.length / length))
