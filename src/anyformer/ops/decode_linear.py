"""x W^T + b for the few rows of a decoding step on a GPU; `F.linear` in training and on other devices.

One row has its own kernel, `one_row`. If the number of outputs is odd, rows of scores begin at unaligned addresses, for
which libraries only have slow kernels. Then (W x^T)^T is computed: the same scores in column-major memory, aligned.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from anyformer.ops.one_row_linear import one_row, supports_one_row

_ALIGNED = 8
"""Half-precision values that one memory access reads or writes."""
_MOST_ROWS = 512


def product(
    x: Float[Tensor, "*batch i"], weight: Float[Tensor, "o i"], bias: Float[Tensor, " o"] | None = None
) -> Float[Tensor, "*batch o"]:
    """x W^T + b by the fastest kernel. With several rows the result may be column-major."""
    if supports_one_row(x, weight):
        y: Tensor = one_row(x, weight, bias)
        return y
    return transposed_linear(x, weight, bias) if prefers_transposed(x, weight) else F.linear(x, weight, bias)


def prefers_transposed(x: Float[Tensor, "*batch i"], weight: Float[Tensor, "o i"]) -> bool:
    """True for an unaligned number of outputs and an aligned number of rows, in half precision without gradients."""
    if not x.is_cuda or torch.is_grad_enabled() or torch.is_autocast_enabled("cuda"):
        return False
    (outputs, fan_in), rows = weight.shape, x.shape[:-1].numel()
    fits = outputs % _ALIGNED != 0 and rows % _ALIGNED == 0 and fan_in % _ALIGNED == 0
    return fits and rows <= _MOST_ROWS and x.dtype == weight.dtype and x.dtype.itemsize == 2


def transposed_linear(
    x: Float[Tensor, "*batch i"], weight: Float[Tensor, "o i"], bias: Float[Tensor, " o"] | None = None
) -> Float[Tensor, "*batch o"]:
    """(W x^T)^T + b, in column-major memory."""
    y = torch.mm(weight, x.flatten(0, -2).t()).t()  # [rows o]
    y = y if bias is None else y + bias
    return y.view(*x.shape[:-1], len(weight))
