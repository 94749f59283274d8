"""The kernels of `norm`: a program normalises some rows at a time, in float32, and reads every value once.

    n = (x - mean) s,  s = 1 / sqrt(var + eps),  y = g n + b          (root-mean-square: mean = 0)
    dx = s (g dy - mean(g dy) - n mean(g dy n)),  dg = sum over rows of dy n,  db = sum over rows of dy

The sums over rows are left in parts, one for each program, and added by torch in a deterministic order.
"""

# mypy: ignore-errors
# A type checker does not understand Triton's language.

import torch
import triton
import triton.language as tl
from torch import Tensor

LONGEST = 16_384
"""Width of the longest row: a program keeps whole rows in registers."""
_TILE = 2048
"""Values of a tile, for rows that are shorter than that."""
_PROGRAMS = 512
"""Programs of the backward pass: enough to keep a large GPU busy, few enough that adding their parts is cheap."""


@triton.jit
def _places(number, sizes, tile: tl.constexpr):
    """Rows and columns of a tile, the offsets of its values in x, and which of them exist."""
    rows, width, inner, outer_stride, inner_stride = sizes
    high: tl.constexpr = tile[0]
    wide: tl.constexpr = tile[1]
    row, column = number * high + tl.arange(0, high), tl.arange(0, wide)
    start = (row // inner).to(tl.int64) * outer_stride + (row % inner) * inner_stride
    inside = (row < rows)[:, None] & (column < width)[None, :]
    return row, column, start[:, None] + column[None, :], inside


@triton.jit
def _forward(x, affine, y, moments, sizes, eps, tile: tl.constexpr, how: tl.constexpr):
    gain, shift = affine
    means, scales = moments
    rows, width = sizes[0], sizes[1]
    centred: tl.constexpr = how[0]
    shifted: tl.constexpr = how[1]
    row, column, place, inside = _places(tl.program_id(0), sizes, tile)
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    if centred:
        mean = tl.sum(value, axis=1) / width
        tl.store(means + row, mean, mask=row < rows)
        value = tl.where(inside, value - mean[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(value * value, axis=1) / width + eps)
    tl.store(scales + row, scale, mask=row < rows)
    result = value * scale[:, None] * tl.load(gain + column, mask=column < width, other=0.0)[None, :]
    if shifted:
        result += tl.load(shift + column, mask=column < width, other=0.0)[None, :]
    out = row[:, None].to(tl.int64) * width + column[None, :]
    tl.store(y + out, result.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _backward(x, affine, dy, dx, moments, sizes, tile: tl.constexpr, centred: tl.constexpr):
    gain, by_gain, by_shift = affine
    means, scales = moments
    rows, width = sizes[0], sizes[1]
    high: tl.constexpr = tile[0]
    wide: tl.constexpr = tile[1]
    program, columns = tl.program_id(0), tl.arange(0, wide)
    factor = tl.load(gain + columns, mask=columns < width, other=0.0)[None, :]
    sum_gain, sum_shift = tl.zeros([wide], dtype=tl.float32), tl.zeros([wide], dtype=tl.float32)
    for number in range(program, tl.cdiv(rows, high), tl.num_programs(0)):
        row, column, place, inside = _places(number, sizes, tile)
        out = row[:, None].to(tl.int64) * width + column[None, :]
        scale = tl.load(scales + row, mask=row < rows, other=0.0)[:, None]
        normal = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
        if centred:
            mean = tl.load(means + row, mask=row < rows, other=0.0)[:, None]
            normal = tl.where(inside, normal - mean, 0.0)
        normal = normal * scale
        slope = tl.load(dy + out, mask=inside, other=0.0).to(tl.float32)
        sum_gain += tl.sum(slope * normal, axis=0)
        inner_slope = slope * factor
        change = inner_slope - normal * (tl.sum(inner_slope * normal, axis=1) / width)[:, None]
        if centred:
            sum_shift += tl.sum(slope, axis=0)
            change -= (tl.sum(inner_slope, axis=1) / width)[:, None]
        tl.store(dx + out, (scale * change).to(dx.dtype.element_ty), mask=inside)
    tl.store(by_gain + program * width + columns, sum_gain, mask=columns < width)
    if centred:
        tl.store(by_shift + program * width + columns, sum_shift, mask=columns < width)


def forward(x: Tensor, gain: Tensor, shift: Tensor | None, eps: float, centred: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The normalised x, contiguous, and the mean and the scale of every row."""
    table, sizes = _table(x)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    scale = torch.empty(sizes[0], dtype=torch.float32, device=x.device)
    mean = torch.empty_like(scale) if centred else scale
    tile, affine = _tile(x.shape[-1]), (gain, gain if shift is None else shift)
    with torch.cuda.device_of(x):
        _forward[(triton.cdiv(sizes[0], tile[0]),)](
            table, affine, y, (mean, scale), sizes, eps, tile, (centred, shift is not None)
        )
    return y, mean, scale


def backward(
    x: Tensor, gain: Tensor, mean: Tensor, scale: Tensor, dy: Tensor, centred: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients with respect to x, the gain and the shift."""
    (table, sizes), dy = _table(x), dy.contiguous()
    dx = torch.empty_like(x, memory_format=torch.contiguous_format)
    tile = _tile(x.shape[-1])
    programs = min(_PROGRAMS, triton.cdiv(sizes[0], tile[0]))
    by_gain = torch.empty(programs, x.shape[-1], dtype=torch.float32, device=x.device)
    by_shift = torch.empty_like(by_gain) if centred else by_gain
    with torch.cuda.device_of(x):
        _backward[(programs,)](table, (gain, by_gain, by_shift), dy, dx, (mean, scale), sizes, tile, centred)
    return dx, by_gain.sum(0), by_shift.sum(0) if centred else by_gain


def _table(x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """x as [outer inner width] with neighbouring columns, without a copy where strides allow it: a head of queries is a
    slice of all projections. And its sizes: rows, width, inner, and the strides of the first two dimensions."""
    shape = (-1, *((1,) * (2 - min(2, x.dim())) + tuple(x.shape))[-2:])
    try:
        table = x.view(shape)
    except RuntimeError:
        table = x.contiguous().view(shape)
    table = table if table.stride(-1) == 1 else table.contiguous()
    return table, (x.numel() // x.shape[-1], x.shape[-1], *table.shape[1:2], *table.stride()[:2])


def _tile(width: int) -> tuple[int, int]:
    """Rows and columns of a tile."""
    wide = triton.next_power_of_2(width)
    return max(1, _TILE // wide), wide
