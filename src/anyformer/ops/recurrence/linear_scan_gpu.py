"""The linear scan as one operator of a GPU, with its backward pass as another: a compiler does not look inside.

Decays that many channels share are read as they are, and sequences in the precision they come in: neither is ever made
larger. The kernels are in `scan_kernel`, the definition in `scan`.
"""

import importlib.util
from typing import Any

import torch
from torch import Tensor

from anyformer.ops.recurrence.scan_channels import Channels, channels_of

if importlib.util.find_spec("triton"):  # which a CPU does without
    from anyformer.ops.kernels.linear_scan_kernel import backward, forward
else:
    forward, backward = None, None  # type: ignore[assignment]


def supports_linear_scan(a: Tensor, b: Tensor) -> bool:
    """Several real steps, computed in single precision, on a GPU of NVIDIA's that Triton knows."""
    if not b.is_cuda or torch.version.hip is not None:
        return False
    single = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32) == torch.float32
    several = a.shape[:2] == b.shape[:2] and b.shape[1] > 1 and b.numel() > 0
    return single and several and channels_of(a.shape[2:], b.shape[2:]) is not None and forward is not None


@torch.library.custom_op("anyformer::linear_scan", mutates_args=())
def linear_scan_gpu(a: Tensor, b: Tensor, start: Tensor) -> Tensor:
    """Every h [b t *d]; a with as many dimensions, 1 where it is shared."""
    assert forward is not None
    with torch.cuda.device_of(b):
        return forward(a, b, start, _channels(a, b))


@linear_scan_gpu.register_fake
def _(a: Tensor, b: Tensor, start: Tensor) -> Tensor:
    return torch.empty_like(b, dtype=torch.float32, memory_format=torch.contiguous_format)


@torch.library.custom_op("anyformer::linear_scan_backward", mutates_args=())
def _gradients(a: Tensor, start: Tensor, h: Tensor, dh: Tensor, low: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    assert backward is not None
    with torch.cuda.device_of(h):
        return backward(a, start, h, dh, low, _channels(a, h))


@_gradients.register_fake
def _(a: Tensor, start: Tensor, h: Tensor, dh: Tensor, low: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    by_a, by_start = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (a, start))
    return by_a, torch.empty_like(h, dtype=low), by_start


def _channels(a: Tensor, b: Tensor) -> Channels:
    found = channels_of(a.shape[2:], b.shape[2:])
    assert found is not None
    return found


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    a, b, start = inputs
    ctx.save_for_backward(a, start, output)
    ctx.low = b.dtype


def _backward(ctx: Any, dh: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    by_a, by_b, by_start = _gradients(*ctx.saved_tensors, dh, ctx.low)
    return by_a, by_b, by_start


linear_scan_gpu.register_autograd(_backward, setup_context=_save)
