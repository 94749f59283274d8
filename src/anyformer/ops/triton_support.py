"""Whether the Triton kernels of this package can run."""

import importlib.util

import torch
from torch import Tensor

TRITON = importlib.util.find_spec("triton") is not None
"""True: Triton is installed, so that kernels can be imported. It is absent on a CPU."""


def supports_triton(x: Tensor) -> bool:
    """True: x is on an NVIDIA GPU and Triton is installed. The kernels are not tested on ROCm."""
    return TRITON and x.is_cuda and torch.version.hip is None
