"""Attention without values, with the memory of a fused kernel.

torch's own meta path writes the [t s] matrices out, which no device does: it would double the activation estimate.
"""

from typing import Any

import torch
from torch import Tensor


class _FlashShape(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        y = torch.empty_like(q)
        log_sum = q.new_empty(q.shape[:3], dtype=torch.float32)
        ctx.save_for_backward(q, k, v, y, log_sum)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        q, k, v, _, _ = ctx.saved_tensors
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def attend_shape(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The shape of attention's output, keeping for the backward what a fused kernel keeps."""
    return _FlashShape.apply(q, k, v)  # type: ignore[no-untyped-call,no-any-return]
