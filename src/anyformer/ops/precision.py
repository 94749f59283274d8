"""Which precision a computation needs whatever the model computes in."""

import torch
from torch import Tensor


def wide(x: Tensor) -> torch.dtype:
    """At least single precision: what sums over many tokens are kept in."""
    return torch.promote_types(x.dtype, torch.float32)
