"""Root-mean-square normalisation: scales, does not centre.

y = g x / sqrt(mean(x^2) + eps)          (arXiv 1910.07467; section 3.1 takes the mean over a first part of x only)
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from anyformer.core import Frame, Norm, NormSpec, Positive, Range, Site, param
from anyformer.ops.devices import at_least_float32
from anyformer.ops.fused import rms_norm


@dataclass(frozen=True, kw_only=True)
class RMSNorm(NormSpec, kind="rms"):
    """Root-mean-square normalisation: scales, does not centre."""

    eps: Positive = 1e-6
    """Keeps the division finite."""
    part: Annotated[float, Range(above=0.0, high=1.0)] = 1.0
    """Share of the dimensions, the first ones, that the mean is taken over."""

    @classmethod
    def examples(cls) -> "tuple[RMSNorm, ...]":
        return cls(), cls(part=0.25)

    def build(self, site: Site) -> "RMSNormModule":
        return RMSNormModule(self, site.dim)


class RMSNormModule(Norm):
    def __init__(self, spec: RMSNorm, dim: int):
        super().__init__()
        self.eps, self.channels_in_mean = spec.eps, math.ceil(spec.part * dim)
        self.gain = param((dim,), "gain")

    def forward(self, x: Tensor, frame: Frame) -> Tensor:
        if self.channels_in_mean < x.shape[-1]:  # partial RMSNorm, section 3.1
            y = x.to(at_least_float32(x))
            mean_square = y[..., : self.channels_in_mean].square().mean(-1, keepdim=True)
            return (y * torch.rsqrt(mean_square + self.eps) * self.gain).type_as(x)
        return rms_norm(x, self.gain, self.eps)
