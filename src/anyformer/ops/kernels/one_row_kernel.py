"""The kernel of `one_row`: each program computes a few outputs, from complete rows of the matrix.

The product with one row is bound by reading the weights, plus the latency before and after. So there are more programs
than a GPU has processors; a program loads all of its weights before it reads the row, which the preceding kernel may
still be computing; and a thread holds the same columns of all of its rows, so that norms are computed once for them.
"""

# mypy: ignore-errors
# A type checker does not understand Triton's language.

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from anyformer.ops.kernels.dependent_launch import begins_early, gdc_launch_dependents, gdc_wait

_PROGRAMS = 384
"""Least number of programs, about three for each processor of a large GPU, if there are enough outputs."""
_MOST_ROWS = 4
_HELD_BYTES = 192
"""Bytes of weights that a thread holds, if it holds those of several rows of the matrix."""
_REGISTERS = 128
"""More than it needs: without a limit the assembler saves registers by delaying half of the loads."""


@triton.jit
def _read(first, k, fan_in: tl.constexpr):
    k_block: tl.constexpr = k.shape[1]
    tiles = ()
    for start in tl.static_range(0, fan_in, k_block):
        if start + k_block <= fan_in:
            tiles += (tl.load(first + start),)
        else:
            tiles += (tl.load(first + start, mask=k < fan_in - start, other=0.0),)
    return tiles


@triton.jit
def _multiplied(left, right):
    """The sum of all products, for each row of the tiles."""
    total = left[0].to(tl.float32) * right[0].to(tl.float32)
    for tile in tl.static_range(1, len(left)):
        total += left[tile].to(tl.float32) * right[tile].to(tl.float32)
    return tl.sum(total, axis=1)


@triton.jit
def _less(row, pivot, k, fan_in: tl.constexpr):
    """The row less the pivot, and the mean of that."""
    k_block: tl.constexpr = k.shape[1]
    tiles, total = (), tl.zeros([1, k_block], tl.float32)
    for tile in tl.static_range(len(row)):
        far = row[tile].to(tl.float32) - pivot
        if (tile + 1) * k_block > fan_in:
            far = tl.where(k < fan_in - tile * k_block, far, 0.0)
        tiles += (far,)
        total += far
    return tiles, tl.sum(total, axis=1) / fan_in


@triton.jit
def _affine(row, factor, summand, gains, shifts):
    tiles = ()
    for tile in tl.static_range(len(row)):
        each = row[tile].to(tl.float32) * factor + summand
        if gains is not None:
            each *= gains[tile].to(tl.float32)
        if shifts is not None:
            each += shifts[tile].to(tl.float32)
        tiles += (each,)
    return tiles


@triton.jit
def _normalised(row, pivot, gains, shifts, eps, k, fan_in: tl.constexpr, norm: tl.constexpr):
    """Mean and variance are computed independently of each other. To keep precision for a large mean, both are taken of
    x - x_1, whose mean is at most sqrt(length) standard deviations."""
    if norm == "layer":
        row, mean = _less(row, pivot, k, fan_in)
    else:
        tl.static_assert(norm == "rms")
        mean = tl.zeros([1], tl.float32)
    square = tl.maximum(_multiplied(row, row) / fan_in - mean * mean, 0.0)
    factor = tl.rsqrt(square + eps)
    return _affine(row, factor[:, None], (-mean * factor)[:, None], gains, shifts)


@triton.jit
def _activated(y, activation: tl.constexpr):
    if activation == "relu":
        y = tl.maximum(y, 0.0)
    elif activation == "gelu":
        y = 0.5 * y * (1.0 + tl.erf(y * 0.7071067811865476))
    elif activation == "gelu_tanh":  # (1 + tanh u) / 2 = sigmoid 2u
        y = y * tl.sigmoid(1.5957691216057308 * (y + 0.044715 * y * y * y))
    elif activation == "silu":
        y = y * tl.sigmoid(y)
    elif activation == "sigmoid":
        y = tl.sigmoid(y)
    else:
        tl.static_assert(activation == "")
    return y


@triton.jit
def _multiply(x, weight, vectors, y, outputs, eps, sizes: tl.constexpr, ways: tl.constexpr):
    bias, gain, shift, residual = vectors
    fan_in: tl.constexpr = sizes[0]
    n_block: tl.constexpr = sizes[1]
    k_block: tl.constexpr = sizes[2]
    norm: tl.constexpr = ways[0]
    activation: tl.constexpr = ways[1]
    early: tl.constexpr = ways[2]
    if early:
        gdc_launch_dependents()  # the next kernel may start to load its weights
    output = tl.program_id(0) * n_block + tl.arange(0, n_block)
    k = tl.arange(0, k_block)[None, :]
    there = output < outputs
    first = weight + tl.minimum(output, outputs - 1).to(tl.int64)[:, None] * fan_in + k  # there may be 2^31 weights
    weights = _read(first, k, fan_in)
    gains = None if gain is None else _read(gain + k, k, fan_in)
    shifts = None if shift is None else _read(shift + k, k, fan_in)
    sums = tl.zeros([n_block], tl.float32)
    if bias is not None:
        sums += tl.load(bias + output, mask=there, other=0.0).to(tl.float32)
    if early:
        gdc_wait()  # for the preceding kernel: nothing above may read its output
    elif norm != "":
        tl.debug_barrier()  # otherwise the assembler delays loading weights until the row is normalised
    row = _read(x + k, k, fan_in)
    if residual is not None:
        stream = tl.load(residual + output, mask=there, other=0.0).to(tl.float32)
    if norm != "":
        row = _normalised(row, tl.load(x).to(tl.float32), gains, shifts, eps, k, fan_in, norm)
    sums += _multiplied(weights, row)
    sums = _activated(sums, activation)
    if residual is not None:
        sums += stream
    tl.store(y + output, sums.to(y.dtype.element_ty), mask=there)


def launch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    norm: str,
    affine: Sequence[Tensor],
    eps: float,
    activation: str,
) -> Tensor:
    """y [*batch n] of x [*batch k], where the batch is one row."""
    outputs, fan_in = weight.shape
    y = torch.empty(*x.shape[:-1], outputs, dtype=x.dtype, device=x.device)
    n_block, k_block, warps = plan(outputs, fan_in, weight.element_size())
    gain, shift = [*affine, None, None][:2]
    copied = any(each is not None and not each.is_contiguous() for each in (bias, gain, shift))
    vectors = tuple(None if each is None else each.contiguous() for each in (bias, gain, shift, residual))
    early = begins_early(x.device) and not copied
    sizes, ways = (fan_in, n_block, k_block), (norm, activation, early)
    options = {"num_warps": warps, "maxnreg": _REGISTERS, **({"launch_pdl": True} if early else {})}
    grid = (triton.cdiv(outputs, n_block),)
    _multiply[grid](x.contiguous(), weight, vectors, y, outputs, eps, sizes, ways, **options)
    return y


def plan(outputs: int, fan_in: int, item_bytes: int) -> tuple[int, int, int]:
    """Outputs of a program, columns that are read at a time, and warps; a thread reads eight values at a time."""
    warps = min(triton.next_power_of_2(triton.cdiv(fan_in * item_bytes, 2048)), 16)
    held = triton.cdiv(fan_in, 256 * warps) * 8 * item_bytes
    rows = min(_MOST_ROWS, max(outputs // _PROGRAMS, 1), max(_HELD_BYTES // held, 1))
    return 1 << (rows.bit_length() - 1), 256 * warps, warps
