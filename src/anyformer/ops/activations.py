"""The activations of feed-forward parts, by name."""

import math
from collections.abc import Callable, Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Activation = Literal[
    "relu", "gelu", "gelu_tanh", "silu", "elu", "selu", "sigmoid", "softplus", "tanh", "relu2", "identity"
]
"""`silu` is Swish with beta 1; `gelu_tanh` is GELU's tanh approximation; `identity` makes a GLU bilinear."""

_HALF = (torch.bfloat16, torch.float16)
_RATE = 0.3275911 / math.sqrt(2.0)
_ERF = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


def _gelu(x: Tensor) -> Tensor:
    return gelu_by_exponential(x) if _is_compiled_for_training(x) and x.dtype in _HALF else F.gelu(x)


def _gelu_tanh(x: Tensor) -> Tensor:
    return gelu_by_sigmoid(x) if _is_compiled_for_training(x) else F.gelu(x, approximate="tanh")


def _is_compiled_for_training(x: Tensor) -> bool:
    """True when compiled for training on a GPU: there erf and tanh make the kernel compute-bound, while a single exp
    keeps it memory-bound."""
    return x.is_cuda and torch.compiler.is_compiling() and torch.is_grad_enabled()


def gelu_by_sigmoid(x: Tensor) -> Tensor:
    """GELU's tanh approximation, as (1 + tanh u) / 2 = sigmoid 2u."""
    return x * torch.sigmoid(2.0 * math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x))


def gelu_by_exponential(x: Tensor) -> Tensor:
    """GELU to 1e-7 (Abramowitz and Stegun 1964, 7.1.26), for half precision, which has three digits."""
    y = x.float()
    t = 1.0 / (1.0 + _RATE * y.abs())
    tail = 0.5 * t * torch.exp(-0.5 * y * y)
    tail = tail * (_ERF[0] + t * (_ERF[1] + t * (_ERF[2] + t * (_ERF[3] + t * _ERF[4]))))
    return (y * torch.where(y < 0, tail, 1.0 - tail)).to(x.dtype)


def inverse_softplus(y: Tensor) -> Tensor:
    """x with softplus(x) = y, for y > 0."""
    return y + (-torch.expm1(-y)).log()


ACTIVATION_FUNCTIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": F.silu,
    "elu": F.elu,
    "selu": F.selu,
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "tanh": torch.tanh,
    "relu2": lambda x: F.relu(x).square(),
    "identity": lambda x: x,
}
"""The function of each name."""
