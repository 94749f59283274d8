"""Gradient clipping: all gradients are scaled together so that their joint norm is at most a limit.

g <- g min(1, max_norm / (|g| + 1e-6))          (arXiv 1211.5063)
"""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm


@torch.no_grad()
def clip(parameters: Iterable[Tensor], max_norm: float | None) -> Tensor:
    """Clips gradients in place and returns their joint norm before clipping, on the device without a synchronisation.
    Without a limit, gradients stay unchanged."""
    tensors = [parameter for parameter in parameters if parameter.grad is not None]
    norm = get_total_norm([tensor.grad for tensor in tensors if tensor.grad is not None])
    norm = norm.full_tensor() if isinstance(norm, DTensor) else norm  # each rank knows the norm of its shard only
    if max_norm is not None:
        clip_grads_with_norm_(tensors, max_norm, norm)
    return norm
