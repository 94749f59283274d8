"""Where our Triton kernels can run: on NVIDIA's GPUs, if Triton is installed. No other module decides that."""

import importlib.util

import torch

TRITON_INSTALLED = importlib.util.find_spec("triton") is not None


def runs_triton(device: torch.device) -> bool:
    """Whether our Triton kernels run on a device. ROCm names its devices cuda too; the kernels are not for it."""
    return TRITON_INSTALLED and device.type == "cuda" and torch.version.hip is None
