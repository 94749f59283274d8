"""The activations of feed-forward parts, by name."""

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
    return F.gelu(x, approximate="tanh")


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
