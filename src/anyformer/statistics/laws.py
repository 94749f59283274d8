"""Scaling laws: how the loss falls with parameters, tokens and compute, and what training costs.

L(N)    = L_inf + (N_c / N)^a                        Kaplan et al. 2020, with L_inf = 0
L(N, D) = ((N_c / N)^(a_N / a_D) + D_c / D)^a_D      Kaplan et al. 2020
L(N, D) = E + A / N^a + B / D^b                      Hoffmann et al. 2022 ("Chinchilla")
C = 6 N D,   or   C = time × devices × FLOP/s        Kaplan et al. 2020; Vaswani et al. 2017
"""

from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike

from anyformer.statistics.intervals import Floats

SUSTAINED = MappingProxyType({"K80": 2.8e12, "K40": 3.7e12, "M40": 6.0e12, "P100": 9.5e12})
"""Sustained single-precision FLOP/s that Vaswani et al. assume for each GPU."""


def training_flops(params: float, tokens: float) -> float:
    """FLOPs of training, 6 N D: for each weight and token, two in the forward and four in the backward pass."""
    return 6.0 * params * tokens


def spent_flops(seconds: float, devices: float, rate: float) -> float:
    """FLOPs of training, estimated from the wall-clock time: time × devices × sustained FLOP/s of a device."""
    return seconds * devices * rate


def weights(layers: int, width: int) -> int:
    """Parameters of a Transformer without embeddings, 12 L d², if its MLP is four times as wide as the model."""
    return 12 * layers * width**2


def forward_flops(layers: int, width: int, context: int, *, causal: bool = True) -> int:
    """FLOPs of a forward pass for each token: two for each weight, plus attention, which a causal mask halves."""
    return 2 * weights(layers, width) + (2 if causal else 4) * layers * context * width


@dataclass(frozen=True)
class PowerLaw:
    """L(x) = floor + (scale / x)^exponent, of parameters, tokens or compute."""

    exponent: float
    scale: float
    floor: float = 0.0

    def loss(self, size: ArrayLike) -> Floats:
        return self.floor + (self.scale / np.asarray(size, dtype=np.float64)) ** self.exponent


@dataclass(frozen=True)
class Kaplan:
    """L(N, D) = ((N_c / N)^(a_N / a_D) + D_c / D)^a_D."""

    size_exponent: float
    size_scale: float
    data_exponent: float
    data_scale: float

    def loss(self, size: ArrayLike, tokens: ArrayLike) -> Floats:
        by_size = (self.size_scale / np.asarray(size, dtype=np.float64)) ** (self.size_exponent / self.data_exponent)
        return (by_size + self.data_scale / np.asarray(tokens, dtype=np.float64)) ** self.data_exponent


@dataclass(frozen=True)
class Chinchilla:
    """L(N, D) = floor + A / N^a + B / D^b."""

    floor: float
    size_factor: float
    size_exponent: float
    data_factor: float
    data_exponent: float

    def loss(self, size: ArrayLike, tokens: ArrayLike) -> Floats:
        by_size = self.size_factor / np.asarray(size, dtype=np.float64) ** self.size_exponent
        return self.floor + by_size + self.data_factor / np.asarray(tokens, dtype=np.float64) ** self.data_exponent

    def optimum(self, flops: float) -> tuple[float, float]:
        """The parameters and tokens with the lowest loss for a budget C = 6 N D (equation 4 of the paper)."""
        a, b, pairs = self.size_exponent, self.data_exponent, flops / 6
        ratio = (a * self.size_factor / (b * self.data_factor)) ** (1 / (a + b))
        return ratio * pairs ** (b / (a + b)), pairs ** (a / (a + b)) / ratio


KAPLAN_SIZE, KAPLAN_DATA = PowerLaw(0.076, 8.8e13), PowerLaw(0.095, 5.4e13)
KAPLAN_COMPUTE = PowerLaw(0.050, 3.1e8)
"""Fits of Kaplan et al.: loss over parameters without embeddings, over tokens, and over optimal compute in PF-days."""
