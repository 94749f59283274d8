"""The kernel of `one_row`: each program makes a few outputs, from all of their rows of the matrix.

A step of one row is as fast as its weights come from memory. So there are more programs than a GPU has processors, and
a program's loads do not wait for each other: products are kept apart, and summed up when all are there.
"""

# mypy: ignore-errors
# Triton's language is no Python that a type checker could follow.

import torch
import triton
import triton.language as tl
from torch import Tensor

_PROGRAMS = 384
"""At least so many, about three for each processor of a large GPU, as long as there are outputs."""
_REGISTERS = 128
"""Far more than it needs: with no limit the assembler saves some, and puts off half of the loads for that."""
_LONG = 2048
"""Rows of the matrix that have more go to four warps, others to one."""


@triton.jit
def _multiply(x, weight, bias, y, outputs, fan_in: tl.constexpr, tile: tl.constexpr):
    n_block: tl.constexpr = tile[0]
    k_block: tl.constexpr = tile[1]
    own = tl.program_id(0) * n_block + tl.arange(0, n_block)
    k = tl.arange(0, k_block)[None, :]
    row = weight + tl.minimum(own, outputs - 1).to(tl.int64)[:, None] * fan_in + k  # there may be 2^31 weights
    given = x + tl.zeros([n_block, 1], tl.int32) + k  # for each output, so that both lie on the same threads
    sums = tl.zeros([n_block], tl.float32)
    if bias is not None:
        sums += tl.load(bias + own, mask=own < outputs, other=0.0).to(tl.float32)
    total = tl.zeros([n_block, k_block], tl.float32)
    for start in tl.static_range(0, fan_in, k_block):
        if start + k_block <= fan_in:
            left, right = tl.load(row + start), tl.load(given + start)
        else:
            left = tl.load(row + start, mask=k < fan_in - start, other=0.0)
            right = tl.load(given + start, mask=k < fan_in - start, other=0.0)
        total += left.to(tl.float32) * right.to(tl.float32)
    sums += tl.sum(total, axis=1)
    tl.store(y + own, sums.to(y.dtype.element_ty), mask=own < outputs)


def launch(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """y [*batch n] of x [*batch k], where the batch is one row."""
    outputs, fan_in = weight.shape
    y = torch.empty(*x.shape[:-1], outputs, dtype=x.dtype, device=x.device)
    n_block, k_block, warps = plan(outputs, fan_in)
    grid, options = (triton.cdiv(outputs, n_block),), {"num_warps": warps, "maxnreg": _REGISTERS}
    _multiply[grid](x.contiguous(), weight, bias, y, outputs, fan_in, (n_block, k_block), **options)
    return y


def plan(outputs: int, fan_in: int) -> tuple[int, int, int]:
    """Outputs of a program, values of each that are read at a time, and warps: eight values a thread."""
    if fan_in > _LONG:
        return 1, 1024, 4
    warps = 1 if outputs < 2 * _PROGRAMS else 2 if outputs < 4 * _PROGRAMS else 4
    return warps, 256, warps
