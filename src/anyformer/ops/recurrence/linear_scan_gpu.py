"""The linear scan as one GPU operator, with its backward pass as another; both are opaque to a compiler.

Decays that several channels share are read without expanding them, and sequences in their own dtype. The kernels are in
`linear_scan_kernel`, the definition in `linear_scan`.
"""

from typing import Any

import torch
from torch import Tensor

from anyformer.ops.recurrence.scan_channels import Channels, channels_of
from anyformer.ops.triton_support import TRITON, supports_triton

if TRITON:
    from anyformer.ops.kernels.linear_scan_kernel import backward, forward


def supports_linear_scan(a: Tensor, b: Tensor) -> bool:
    """True for several real-valued steps in float32 on an NVIDIA GPU with Triton."""
    if not supports_triton(b):
        return False
    single = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32) == torch.float32
    several = a.shape[:2] == b.shape[:2] and b.shape[1] > 1 and b.numel() > 0
    return single and several and channels_of(a.shape[2:], b.shape[2:]) is not None


@torch.library.custom_op("anyformer::linear_scan", mutates_args=())
def linear_scan_gpu(a: Tensor, b: Tensor, start: Tensor) -> Tensor:
    """Every h [b t *d]. `a` has as many dimensions, of size 1 if shared."""
    with torch.cuda.device_of(b):
        return forward(a, b, start, _channels(a, b))


@linear_scan_gpu.register_fake
def _(a: Tensor, b: Tensor, start: Tensor) -> Tensor:
    return torch.empty_like(b, dtype=torch.float32, memory_format=torch.contiguous_format)


@torch.library.custom_op("anyformer::linear_scan_backward", mutates_args=())
def _gradients(a: Tensor, start: Tensor, h: Tensor, dh: Tensor, low: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    with torch.cuda.device_of(h):
        return backward(a, start, h, dh, low, _channels(a, h))


@_gradients.register_fake
def _(a: Tensor, start: Tensor, h: Tensor, dh: Tensor, low: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    by_a, by_start = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (a, start))
    return by_a, torch.empty_like(h, dtype=low), by_start


def _channels(a: Tensor, b: Tensor) -> Channels:
    channels = channels_of(a.shape[2:], b.shape[2:])
    assert channels is not None
    return channels


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    a, b, start = inputs
    ctx.save_for_backward(a, start, output)
    ctx.low = b.dtype


def _backward(ctx: Any, dh: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    by_a, by_b, by_start = _gradients(*ctx.saved_tensors, dh, ctx.low)
    return by_a, by_b, by_start


linear_scan_gpu.register_autograd(_backward, setup_context=_save)
