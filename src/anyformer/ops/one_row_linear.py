"""The product of one row with a matrix on a GPU, where all that counts is how fast W comes from memory.

y = bend(norm(x) W^T + b) + residual, where all but W may be absent: beside the product the rest is a few values, and as
kernels of their own they would cost as much time as it does. Libraries are made for many rows. `one_row_loop` is the
definition, the kernel is `one_row_kernel`. All is kept in single precision and rounded once.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from anyformer.ops.activations import activation
from anyformer.ops.triton_support import TRITON_INSTALLED, runs_triton

if TRITON_INSTALLED:
    from anyformer.ops.kernels.one_row_kernel import launch
else:
    launch = None  # type: ignore[assignment]

BENDS = ("relu", "gelu", "gelu_tanh", "silu", "sigmoid")
"""The activations that it knows."""
LONGEST_NORM = 1 << 13
"""Of the rows that it can normalise: every program holds all of its row."""
_KINDS = (torch.bfloat16, torch.float16, torch.float32)
_LONGEST = 1 << 15
_SCHEMA = (
    "(Tensor x, Tensor weight, Tensor? bias=None, Tensor? residual=None, "
    "str norm='', Tensor[]? affine=None, float eps=0.0, str bend='') -> Tensor"
)
"""Said in full: torch does not know by itself a list that may be absent."""


def worth_one_row(x: Float[Tensor, "*batch i"], weight: Float[Tensor, "o i"]) -> bool:
    """One row and nothing to learn from it, on a GPU with Triton."""
    if not runs_triton(x.device) or torch.is_grad_enabled() or torch.is_autocast_enabled("cuda"):
        return False
    if x.numel() != weight.shape[1]:
        return False
    fits = x.dtype == weight.dtype and x.dtype in _KINDS and weight.shape[1] <= _LONGEST and weight.is_contiguous()
    return fits


@torch.library.custom_op("anyformer::one_row", mutates_args=(), device_types="cuda", schema=_SCHEMA)
def one_row(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    norm: str = "",
    affine: Sequence[Tensor] | None = None,
    eps: float = 0.0,
    bend: str = "",
) -> Tensor:
    """y [*batch o] of x [*batch i], a single row. `norm` is layer or rms, if any."""
    assert launch is not None
    with torch.cuda.device_of(x):
        return launch(x, weight, bias, residual, norm, affine or (), eps, bend)


@one_row.register_fake
def _(x: Tensor, weight: Tensor, *_: object) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@one_row.register_kernel("cpu")
def one_row_loop(
    x: Float[Tensor, "*batch i"],
    weight: Float[Tensor, "o i"],
    bias: Float[Tensor, " o"] | None = None,
    residual: Float[Tensor, "*batch o"] | None = None,
    norm: str = "",
    affine: Sequence[Float[Tensor, " i"]] | None = None,
    eps: float = 0.0,
    bend: str = "",
) -> Float[Tensor, "*batch o"]:
    """The definition, output by output."""
    row = _normalised(x.flatten().float(), norm, [each.float() for each in affine or ()], eps)
    sums = torch.stack([(row * each.float()).sum() for each in weight])
    sums = sums if bias is None else sums + bias.float()
    sums = activation(bend)(sums) if bend else sums  # type: ignore[arg-type]
    sums = sums if residual is None else sums + residual.flatten().float()
    return sums.to(x.dtype).view(*x.shape[:-1], -1)


def _normalised(row: Float[Tensor, " i"], norm: str, affine: Sequence[Tensor], eps: float) -> Float[Tensor, " i"]:
    gain, shift = [*affine, None, None][:2]
    if norm == "layer":
        return F.layer_norm(row, row.shape, gain, shift, eps)
    return F.rms_norm(row, row.shape, gain, eps) if norm == "rms" else row
