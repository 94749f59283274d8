"""The product of one row with a matrix on a GPU, y = x W^T + b, where all that counts is how fast W comes from memory.

Libraries are made for many rows. `one_row_loop` is the definition, the kernel is `one_row_kernel`. Sums are kept in
single precision and rounded once.
"""

import importlib.util

import torch
from jaxtyping import Float
from torch import Tensor

if importlib.util.find_spec("triton"):  # which a CPU does without
    from anyformer.ops.one_row_kernel import launch
else:
    launch = None  # type: ignore[assignment]

_KINDS = (torch.bfloat16, torch.float16, torch.float32)
_LONGEST = 1 << 15


def worth_one_row(x: Float[Tensor, "*batch i"], weight: Float[Tensor, "o i"]) -> bool:
    """One row and nothing to learn from it, on a GPU of NVIDIA's that Triton knows."""
    if not x.is_cuda or x.numel() != weight.shape[1] or torch.is_grad_enabled() or torch.is_autocast_enabled("cuda"):
        return False
    fits = x.dtype == weight.dtype and x.dtype in _KINDS and weight.shape[1] <= _LONGEST and weight.is_contiguous()
    return fits and torch.version.hip is None and launch is not None


@torch.library.custom_op("anyformer::one_row", mutates_args=())
def one_row(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y [*batch o] of x [*batch i], a single row."""
    assert launch is not None
    with torch.cuda.device_of(x):
        return launch(x, weight, bias)


@one_row.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


def one_row_loop(
    x: Float[Tensor, "*batch i"], weight: Float[Tensor, "o i"], bias: Float[Tensor, " o"] | None = None
) -> Float[Tensor, "*batch o"]:
    """The definition, output by output."""
    row = x.flatten().float()
    sums = torch.stack([(row * each.float()).sum() for each in weight])
    sums = sums if bias is None else sums + bias.float()
    return sums.to(x.dtype).view(*x.shape[:-1], -1)
