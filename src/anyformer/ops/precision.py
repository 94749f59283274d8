"""Which precision a computation needs whatever the model computes in."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def wide(x: Tensor) -> torch.dtype:
    """At least single precision: what sums over many tokens are kept in."""
    return torch.promote_types(x.dtype, torch.float32)


def as_given(x: Tensor) -> AbstractContextManager[object]:
    """Products in the precision of their factors, even where a model trains in mixed precision."""
    return nullcontext() if x.device.type == "meta" else torch.autocast(x.device.type, enabled=False)
