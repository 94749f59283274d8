"""Batch normalisation: each feature by its mean and spread over the tokens of the whole batch.

y = g (x - mean) / sqrt(var + eps) + b          (arXiv 1502.03167)
Training takes mean and var from the valid tokens of the call; evaluation from running averages, so that a token no
longer depends on its neighbours.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from anyformer.core import Chance, Fill, Frame, Norm, NormSpec, Positive, Site, param
from anyformer.ops.devices import at_least_float32


@dataclass(frozen=True, kw_only=True)
class BatchNorm(NormSpec, kind="batch"):
    """Batch normalisation: each feature by its mean and spread over the whole batch."""

    limits: ClassVar[Mapping[str, str]] = {
        "batch": "in training its statistics are the batch's",
        "future": "in training its statistics include later tokens",
    }

    eps: Positive = 1e-5
    """Keeps the division finite."""
    momentum: Chance = 0.1
    """Weight of the newest batch in the running averages."""

    def build(self, site: Site) -> "BatchNormModule":
        return BatchNormModule(self, site.dim)


class BatchNormModule(Norm):
    mean: Tensor
    variance: Tensor

    def __init__(self, spec: BatchNorm, dim: int):
        super().__init__()
        self.eps, self.momentum = spec.eps, spec.momentum
        self.gain = param((dim,), "gain")
        self.bias = param((dim,), "bias")
        self.register_buffer("mean", torch.empty(dim))
        self.register_buffer("variance", torch.empty(dim))

    def init(self, fill: Fill) -> None:
        fill.by_role(self)
        self.mean.zero_()
        self.variance.fill_(1.0)

    def forward(self, x: Tensor, frame: Frame) -> Tensor:
        wide = x.to(at_least_float32(x))  # sums over a batch are too long for bf16
        mean, variance = self._measure(wide, frame.valid) if self.training else (self.mean, self.variance)
        return ((wide - mean) * torch.rsqrt(variance + self.eps) * self.gain + self.bias).type_as(x)

    def _measure(self, x: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        live = x.new_ones(x.shape[:2]) if valid is None else valid.to(x.dtype)
        count, live = live.sum(), live[..., None]
        mean = (x * live).sum((0, 1)) / count.clamp(min=1)
        squares = ((x - mean).square() * live).sum((0, 1))
        with torch.no_grad():
            self.mean.lerp_(mean.to(self.mean.dtype), self.momentum)
            # the running average estimates the variance of the data, not of this sample
            self.variance.lerp_((squares / (count - 1).clamp(min=1)).to(self.variance.dtype), self.momentum)
        return mean, squares / count.clamp(min=1)
