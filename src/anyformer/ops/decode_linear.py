"""x W^T + b for the few rows of a step of decoding on a GPU; wherever something learns, and anywhere else, torch's own.

One row has a kernel of its own, `one_row`. Several rows of scores for an odd number of words would begin at odd
addresses, for which libraries have slow kernels only. There (W x^T)^T is made: the same scores, but those of one word
side by side, so that each word's begin at an even address.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from anyformer.ops.one_row_linear import one_row, worth_one_row

_ALIGNED = 8
"""Values of half precision that are read and written at once."""
_MOST_ROWS = 512


def product(
    x: Float[Tensor, "*batch i"], weight: Float[Tensor, "o i"], bias: Float[Tensor, " o"] | None = None
) -> Float[Tensor, "*batch o"]:
    """Takes the way that is fastest here. With several rows the strides may be those of a transposed tensor."""
    if worth_one_row(x, weight):
        y: Tensor = one_row(x, weight, bias)
        return y
    return by_words(x, weight, bias) if worth_words(x, weight) else F.linear(x, weight, bias)


def worth_words(x: Float[Tensor, "*batch i"], weight: Float[Tensor, "o i"]) -> bool:
    """Outputs whose number is not aligned, for a few rows whose number is, in half precision and without gradients."""
    if not x.is_cuda or torch.is_grad_enabled() or torch.is_autocast_enabled("cuda"):
        return False
    (outputs, fan_in), rows = weight.shape, x.shape[:-1].numel()
    fits = outputs % _ALIGNED != 0 and rows % _ALIGNED == 0 and fan_in % _ALIGNED == 0
    return fits and rows <= _MOST_ROWS and x.dtype == weight.dtype and x.dtype.itemsize == 2


def by_words(
    x: Float[Tensor, "*batch i"], weight: Float[Tensor, "o i"], bias: Float[Tensor, " o"] | None = None
) -> Float[Tensor, "*batch o"]:
    """(W x^T)^T + b: for each output, the values of all rows side by side."""
    y = torch.mm(weight, x.flatten(0, -2).t()).t()  # [rows o]
    y = y if bias is None else y + bias
    return y.view(*x.shape[:-1], len(weight))
