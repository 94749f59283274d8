"""The kernel of `rotation`: a program turns all heads of some tokens, whose angles it computes once."""

# mypy: ignore-errors
# A type checker does not understand Triton's language.

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 1024
"""Pairs of channels of a tile, at most where a head is narrower than that."""


@triton.jit
def _rotate(x, angles, y, sizes, strides, sign, tile: tl.constexpr, heads: tl.constexpr):
    positions, frequency = angles
    tokens, length, half = sizes
    batch_stride, token_stride, head_stride, position_batch_stride, position_stride = strides
    high: tl.constexpr = tile[0]
    wide: tl.constexpr = tile[1]
    token, pair = tl.program_id(0) * high + tl.arange(0, high), tl.arange(0, wide)
    row, at = token // length, token % length
    place = row * position_batch_stride + at * position_stride
    position = tl.load(positions + place, mask=token < tokens, other=0)
    turn = tl.load(frequency + pair, mask=pair < half, other=0.0)
    angle = position.to(tl.float32)[:, None] * turn[None, :]
    cos, sin = tl.cos(angle), tl.sin(angle) * sign
    inside = (token < tokens)[:, None] & (pair < half)[None, :]
    start = row.to(tl.int64) * batch_stride + at.to(tl.int64) * token_stride
    for head in range(heads):
        channel = start[:, None] + head * head_stride + pair[None, :]
        first = tl.load(x + channel, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(x + channel + half, mask=inside, other=0.0).to(tl.float32)
        out = (token.to(tl.int64)[:, None] * heads + head) * (2 * half) + pair[None, :]
        tl.store(y + out, (first * cos - second * sin).to(y.dtype.element_ty), mask=inside)
        tl.store(y + out + half, (second * cos + first * sin).to(y.dtype.element_ty), mask=inside)


def launch(x: Tensor, positions: Tensor, frequency: Tensor, sign: float) -> Tensor:
    """x [b t h c] turned by positions [b t] or [1 t]; contiguous. `sign`: -1 turns back."""
    x = x if x.stride(-1) == 1 else x.contiguous()
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    batch, length, heads, channels = x.shape
    half = channels // 2
    wide = triton.next_power_of_2(half)
    high = max(1, min(_TILE // wide, 16))
    with torch.cuda.device_of(x):
        _rotate[(triton.cdiv(batch * length, high),)](
            x, (positions, frequency), y, (batch * length, length, half),
            x.stride()[:3] + positions.expand(batch, length).stride(), sign, (high, wide), heads,
        )  # fmt: skip
    return y
