"""Rotation of pairs of channels by angles that grow with the position.

(x_1, x_2) -> (x_1 cos a - x_2 sin a, x_2 cos a + x_1 sin a),  a = position x frequency

The first half of the channels is paired with the second. On a GPU one kernel does it; the backward pass is a rotation
by the opposite angle.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from anyformer.ops.devices import TRITON, is_empty, supports_triton

if TRITON:
    from anyformer.ops.kernels.rotation_kernel import launch


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
    @staticmethod
    def forward(ctx: Any, x: Tensor, positions: Tensor, frequency: Tensor) -> Tensor:
        ctx.save_for_backward(positions, frequency)
        return launch(x, positions, frequency, 1.0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        positions, frequency = ctx.saved_tensors
        return launch(dy, positions, frequency, -1.0), None, None
