"""The activations of feed-forward parts, by name."""

import math
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Activation = Literal[
    "relu", "gelu", "gelu_tanh", "silu", "elu", "selu", "sigmoid", "softplus", "tanh", "relu2", "identity"
]
"""`silu` is Swish with beta 1; `gelu_tanh` is GELU's tanh approximation; `identity` makes a GLU bilinear."""


def _gelu_tanh(x: Tensor) -> Tensor:
    if x.is_cuda and torch.compiler.is_compiling() and torch.is_grad_enabled():
        return gelu_by_sigmoid(x)
    return F.gelu(x, approximate="tanh")


def gelu_by_sigmoid(x: Tensor) -> Tensor:
    """The same, as (1 + tanh u) / 2 = sigmoid 2u. A compiled tanh is so long that a GPU waits for it and not for
    memory; one exponential is not."""
    return x * torch.sigmoid(2.0 * math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x))


def _relu_squared(x: Tensor) -> Tensor:
    return F.relu(x).square()


def _identity(x: Tensor) -> Tensor:
    return x


_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": F.silu,
    "elu": F.elu,
    "selu": F.selu,
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "tanh": torch.tanh,
    "relu2": _relu_squared,
    "identity": _identity,
}


def activation(name: Activation) -> Callable[[Tensor], Tensor]:
    """The function of this name."""
    return _FUNCTIONS[name]
