"""Functions of each token by itself that are several kernels in torch and one here, on a GPU in uncompiled code.

Root-mean-square and layer normalisation of the last dimension:

y = g x / sqrt(mean(x^2) + eps)          y = g (x - mean(x)) / sqrt(var(x) + eps) + b

Under mixed precision x is half precision and the gain is float32. Torch's kernels take one dtype for both, so that x
would be copied to float32 and y back again. The kernel reads x and writes y in half precision, and computes in float32.

Rotation of pairs of channels, of the first half with the second, by angles that grow with the position:

(x_1, x_2) -> (x_1 cos a - x_2 sin a, x_2 cos a + x_1 sin a),  a = position x frequency
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from anyformer.ops.devices import TRITON, is_empty, supports_triton

if TRITON:
    from anyformer.ops.kernels.norm_kernel import LONGEST, backward, forward
    from anyformer.ops.kernels.rotation_kernel import launch as rotation


def rms_norm(x: Float[Tensor, "*n d"], gain: Float[Tensor, " d"], eps: float) -> Float[Tensor, "*n d"]:
    """Scales x to a root mean square of 1, then by the gain; in the dtype of x."""
    if _has_kernel(x, gain):
        y: Tensor = _Norm.apply(x, gain, None, eps, False)  # type: ignore[no-untyped-call]
        return y
    if x.dtype == gain.dtype:
        return F.rms_norm(x, x.shape[-1:], gain, eps)
    dtype = torch.promote_types(x.dtype, gain.dtype)
    return F.rms_norm(x.to(dtype), x.shape[-1:], gain.to(dtype), eps).to(x.dtype)


def layer_norm(
    x: Float[Tensor, "*n d"], gain: Float[Tensor, " d"] | None, shift: Float[Tensor, " d"] | None, eps: float
) -> Float[Tensor, "*n d"]:
    """Centres x and scales it to a variance of 1, then by the gain, and adds the shift."""
    if gain is not None and _has_kernel(x, gain):
        y: Tensor = _Norm.apply(x, gain, shift, eps, True)  # type: ignore[no-untyped-call]
        return y
    return torch.layer_norm(x, x.shape[-1:], gain, shift, eps)


def _has_kernel(x: Tensor, gain: Tensor) -> bool:
    """True for half precision with a gain in float32, on an NVIDIA GPU, in code that is not compiled."""
    mixed = x.dtype in (torch.bfloat16, torch.float16) and gain.dtype == torch.float32
    if not (mixed and supports_triton(x)) or torch.compiler.is_compiling() or is_empty(x):
        return False
    return 0 < x.shape[-1] <= LONGEST and x.numel() > 0


class _Norm(torch.autograd.Function):
    """Both norms in two kernels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, shift: Tensor | None, eps: float, centred: bool) -> Tensor:
        y, mean, scale = forward(x, gain, shift, eps, centred)
        ctx.save_for_backward(x, gain, mean, scale)
        ctx.centred, ctx.shifted = centred, shift is not None
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, gain, mean, scale = ctx.saved_tensors
        dx, by_gain, by_shift = backward(x, gain, mean, scale, dy, ctx.centred)
        return dx, by_gain, by_shift if ctx.shifted else None, None, None


def rotate(
    x: Float[Tensor, "b t h c"], positions: Int[Tensor, "#b t"], frequency: Float[Tensor, " pairs"]
) -> Float[Tensor, "b t h c"]:
    """x turned by its positions."""
    single = x.dtype != torch.float64 and frequency.dtype == torch.float32
    if single and supports_triton(x) and not torch.compiler.is_compiling() and not is_empty(x) and x.numel():
        y: Tensor = _Rotation.apply(x, positions, frequency)  # type: ignore[no-untyped-call]
        return y
    return rotate_plain(x, positions, frequency)


def rotate_plain(x: Tensor, positions: Tensor, frequency: Tensor) -> Tensor:
    """The definition: the reference for the kernel."""
    angle = positions[..., None, None] * frequency  # [b t 1 c/2]
    cos, sin = angle.cos().type_as(x), angle.sin().type_as(x)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class _Rotation(torch.autograd.Function):
    """The rotation; its backward pass is one by the opposite angle."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, positions: Tensor, frequency: Tensor) -> Tensor:
        ctx.save_for_backward(positions, frequency)
        return rotation(x, positions, frequency, 1.0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        positions, frequency = ctx.saved_tensors
        return rotation(dy, positions, frequency, -1.0), None, None
