"""One matrix product for each group of rows: y_i = W_g x_i for every row i of group g.

The rows of a group are adjacent, and groups are in order; `ends` [g] holds the index behind the last row of each. Rows
behind the last group belong to none and get zeros. Group sizes are data, so a compiler sees one operator: on a CPU one
product for each group, on a GPU torch's grouped product, which reads `ends` on the device; the host does not wait.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

_FEW, _ROWS_PER_GROUP = 16, 4
"""A group of fewer rows than `_FEW` is padded, unless all groups are small: decoding would take many times as long."""


def grouped_linear(
    x: Float[Tensor, "n i"], weight: Float[Tensor, "g o i"], ends: Int[Tensor, " g"]
) -> Float[Tensor, "n o"]:
    """y_i = W_g x_i for the rows of each group, zeros for the rows behind the last group."""
    device = x.device.type
    if device != "meta" and torch.is_autocast_enabled(device):
        x, weight = (tensor.to(torch.get_autocast_dtype(device)) for tensor in (x, weight))
    y: Tensor = _product(x, weight, ends)
    return y


@torch.library.custom_op("anyformer::grouped_linear", mutates_args=())
def _product(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    if x.is_cuda and fits_grouped_mm(x, weight):
        return product_by_grouped_mm(x, weight, ends)
    y, start = x.new_zeros(len(x), weight.shape[1]), 0
    # A CPU rounds products of few rows differently: the output of a token would depend on the size of its group, and so
    # on the tokens after it.
    least = _FEW if len(x) >= _ROWS_PER_GROUP * len(weight) else 0
    for matrix, end in zip(weight, ends.tolist(), strict=True):
        if end > start:
            rows = F.pad(x[start:end], (0, 0, 0, max(0, least - (end - start))))
            y[start:end] = (rows @ matrix.mT)[: end - start]
        start = end
    return y


@_product.register_fake
def _(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[1])


@torch.library.custom_op("anyformer::grouped_outer", mutates_args=())
def _outer(y: Tensor, x: Tensor, ends: Tensor) -> Tensor:
    """sum_i y_i x_i^T over the rows of each group [g o i]: the gradient with respect to the weight."""
    if x.is_cuda and fits_grouped_mm(x, y):
        return outer_by_grouped_mm(y, x, ends)
    sums, start = x.new_zeros(len(ends), y.shape[1], x.shape[1]), 0
    for matrix, end in zip(sums, ends.tolist(), strict=True):
        if end > start:
            torch.mm(y[start:end].mT, x[start:end], out=matrix)
        start = end
    return sums


@_outer.register_fake
def _(y: Tensor, x: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(ends.shape[0], y.shape[1], x.shape[1])


def fits_grouped_mm(x: Tensor, other: Tensor) -> bool:
    """True: torch's grouped product supports the dtype, and every row begins at a multiple of 16 bytes."""
    widths = (x.shape[-1], *other.shape[-2 if other.dim() == 3 else -1 :])
    return x.dtype != torch.float64 and all(width * x.element_size() % 16 == 0 for width in widths)


def product_by_grouped_mm(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """`grouped_linear` by torch's grouped product, which leaves rows behind the last group undefined."""
    y = torch._grouped_mm(x.contiguous(), weight.mT, offs=ends.int())
    return y.masked_fill(torch.arange(len(x), device=x.device)[:, None] >= ends[-1], 0.0)


def outer_by_grouped_mm(y: Tensor, x: Tensor, ends: Tensor) -> Tensor:
    """The sums of outer products by torch's grouped product, which leaves those of an empty group undefined."""
    sums = torch._grouped_mm(y.contiguous().mT, x.contiguous(), offs=ends.int())
    return sums.masked_fill((ends.diff(prepend=ends.new_zeros(1)) == 0)[:, None, None], 0.0)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _product_backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, ends = ctx.saved_tensors
    by_x = _product(dy, weight.mT, ends) if ctx.needs_input_grad[0] else None
    return by_x, _outer(dy, x, ends) if ctx.needs_input_grad[1] else None, None


def _outer_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    y, x, ends = ctx.saved_tensors
    by_y = _product(x, gradient, ends) if ctx.needs_input_grad[0] else None
    return by_y, _product(y, gradient.mT, ends) if ctx.needs_input_grad[1] else None, None


_product.register_autograd(_product_backward, setup_context=_save)
_outer.register_autograd(_outer_backward, setup_context=_save)


@register_flop_formula(torch.ops.anyformer.grouped_linear)
def _product_flops(x: torch.Size, weight: torch.Size, *others: Any, out_shape: Any) -> int:
    """FLOPs as if every row belonged to a group."""
    return 2 * x[0] * weight[1] * weight[2]


@register_flop_formula(torch.ops.anyformer.grouped_outer)
def _outer_flops(y: torch.Size, x: torch.Size, *others: Any, out_shape: Any) -> int:
    return 2 * y[0] * y[1] * x[1]
