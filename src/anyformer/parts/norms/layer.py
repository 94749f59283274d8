"""Layer normalisation: each token by its own mean and spread.

y = g (x - mean) / sqrt(var + eps) + b          (arXiv 1607.06450); the lectures write (x - mean) / (sd + eps)
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from anyformer.core import Frame, Norm, NormSpec, Positive, Site, param
from anyformer.ops.devices import at_least_float32
from anyformer.ops.fused import layer_norm


@dataclass(frozen=True, kw_only=True)
class LayerNorm(NormSpec, kind="layer"):
    """Layer normalisation: each token by its own mean and spread."""

    eps: Positive = 1e-5
    """Keeps the division finite."""
    eps_in: Literal["variance", "deviation"] = "variance"
    """Where eps is added: to the variance under the root, or to the standard deviation outside it."""
    gain: bool = True
    """Learns a factor for each feature."""
    bias: bool = True
    """Learns a shift for each feature."""

    def build(self, site: Site) -> "LayerNormModule":
        return LayerNormModule(self, site.dim)


class LayerNormModule(Norm):
    def __init__(self, spec: LayerNorm, dim: int):
        super().__init__()
        self.eps, self.outside = spec.eps, spec.eps_in == "deviation"
        self.gain = param((dim,), "gain") if spec.gain else None
        self.bias = param((dim,), "bias") if spec.bias else None

    def forward(self, x: Tensor, frame: Frame) -> Tensor:
        if not self.outside:
            return layer_norm(x, self.gain, self.bias, self.eps)
        wide = x.to(at_least_float32(x))  # squares of half precision overflow
        centred = wide - wide.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True)
        deviation = variance.clamp(min=self.eps**4).sqrt()  # the root has no slope at 0
        y = (centred / (deviation + self.eps)).type_as(x)
        y = y if self.gain is None else y * self.gain
        return y if self.bias is None else y + self.bias
