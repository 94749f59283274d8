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

from anyformer.statistics.paired import Floats

SUSTAINED = MappingProxyType({"K80": 2.8e12, "K40": 3.7e12, "M40": 6.0e12, "P100": 9.5e12})
"""FLOP/s in single precision that Vaswani et al. reckon with."""


def training_flops(params: float, tokens: float) -> float:
    """6 N D: two for each weight and token forward, four backward."""
    return 6.0 * params * tokens


def spent_flops(seconds: float, devices: float, rate: float) -> float:
    """What a training cost by the clock: time × devices × sustained FLOP/s of each."""
    return seconds * devices * rate


def weights(layers: int, width: int) -> int:
    """12 L d²: a Transformer's parameters without embeddings, its hidden layer four times as wide."""
    return 12 * layers * width**2


def forward_flops(layers: int, width: int, context: int, *, causal: bool = True) -> int:
    """For each token: two for each weight, and the pairs of attention, half of them where no one looks ahead."""
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

    def optimum(self, flops: float, flops_per_weight: float = 6.0) -> tuple[float, float]:
        """The parameters and tokens of the lowest loss for a budget C = 6 N D (their equation 4)."""
        a, b, pairs = self.size_exponent, self.data_exponent, flops / flops_per_weight
        ratio = (a * self.size_factor / (b * self.data_factor)) ** (1 / (a + b))
        return ratio * pairs ** (b / (a + b)), pairs ** (a / (a + b)) / ratio


KAPLAN_SIZE, KAPLAN_DATA = PowerLaw(0.076, 8.8e13), PowerLaw(0.095, 5.4e13)
KAPLAN_COMPUTE = PowerLaw(0.050, 3.1e8)
"""Their fits: of parameters without embeddings, of tokens, and of compute well spent in PF-days."""
