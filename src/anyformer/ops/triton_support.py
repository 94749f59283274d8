"""Whether the Triton kernels of this package can run. No other module decides that."""

import importlib.util

import torch
from torch import Tensor

TRITON = importlib.util.find_spec("triton") is not None
"""True: Triton is installed, so that kernels can be imported. It is absent on a CPU."""


def supports_triton(x: Tensor) -> bool:
    """True: x is on an NVIDIA GPU and Triton is installed. ROCm calls its devices cuda too, but is not supported."""
    return TRITON and x.is_cuda and torch.version.hip is None
