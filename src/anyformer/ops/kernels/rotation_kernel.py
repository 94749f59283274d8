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
def _rotate(
    x, positions, frequency, y, sizes, strides, position_strides, sign,
    high: tl.constexpr, wide: tl.constexpr, heads: tl.constexpr,
):  # fmt: skip
    tokens, length, half = sizes
    token, pair = tl.program_id(0) * high + tl.arange(0, high), tl.arange(0, wide)
    row, at = token // length, token % length
    position = tl.load(positions + row * position_strides[0] + at * position_strides[1], mask=token < tokens, other=0)
    turn = tl.load(frequency + pair, mask=pair < half, other=0.0)
    angle = position.to(tl.float32)[:, None] * turn[None, :]
    cos, sin = tl.cos(angle), tl.sin(angle) * sign
    inside = (token < tokens)[:, None] & (pair < half)[None, :]
    start = row.to(tl.int64) * strides[0] + at.to(tl.int64) * strides[1]
    for head in range(heads):
        place = start[:, None] + head * strides[2] + pair[None, :]
        first = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(x + place + half, mask=inside, other=0.0).to(tl.float32)
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
            x, positions, frequency, y, (batch * length, length, half), x.stride()[:3],
            positions.expand(batch, length).stride(), sign, high, wide, heads,
        )  # fmt: skip
    return y
