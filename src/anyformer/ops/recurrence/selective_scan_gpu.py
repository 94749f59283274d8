"""The selective scan as one GPU operator, with its backward pass as another; both are opaque to a compiler.

It saves its inputs and nothing else: no tensor with n values for each channel of each token is ever allocated.
The kernels are in `selective_scan_kernel`, the definition in `selective_scan`.
"""

from typing import Any

import torch
from torch import Tensor

from anyformer.ops.triton_support import TRITON, supports_triton

if TRITON:
    from anyformer.ops.kernels.selective_scan_kernel import backward, forward


def supports_selective_scan(x: Tensor) -> bool:
    """True for several tokens a row in float32 on an NVIDIA GPU with Triton."""
    return supports_triton(x) and x.dtype == torch.float32 and x.shape[1] > 1


@torch.library.custom_op("anyformer::selective_scan", mutates_args=())
def selective_scan_gpu(
    start: Tensor, a: Tensor, x: Tensor, dt: Tensor, decay_dt: Tensor, write: Tensor, read: Tensor
) -> tuple[Tensor, Tensor]:
    """y [b t d] and the last h [b n d], for inputs as `selective_scan` prepares them."""
    with torch.cuda.device_of(x):
        return forward(start, [a, x, dt, decay_dt, write, read])


@selective_scan_gpu.register_fake
def _(start: Tensor, a: Tensor, x: Tensor, *others: Tensor) -> tuple[Tensor, Tensor]:
    return _alike(x), _alike(start)


@torch.library.custom_op("anyformer::selective_scan_backward", mutates_args=())
def _gradients(start: Tensor, inputs: list[Tensor], dy: Tensor, dlast: Tensor) -> list[Tensor]:
    with torch.cuda.device_of(dy):
        return backward(start, inputs, dy, dlast)


@_gradients.register_fake
def _(start: Tensor, inputs: list[Tensor], dy: Tensor, dlast: Tensor) -> list[Tensor]:
    return [_alike(tensor) for tensor in (start, *inputs)]


def _alike(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, dy: Tensor, dlast: Tensor) -> tuple[Tensor, ...]:
    start, *inputs = ctx.saved_tensors
    return tuple(_gradients(start, inputs, dy, dlast))


selective_scan_gpu.register_autograd(_backward, setup_context=_save)
