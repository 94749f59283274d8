"""The kernel of `stepping`: a program for each row and head goes through the filled places of its keys and values once.

`most` is the largest score so far, `mass` the sum of exp(score - most), `total` that of exp(score - most) value, in one
pass. The new token comes first, from registers, so no program waits for what another one writes.
"""

# mypy: ignore-errors
# Triton's language is no Python that a type checker could follow.

import torch
import triton
import triton.language as tl
from torch import Tensor

_PLACES = 128
"""Read at a time."""


@triton.jit
def _step(given, state, positions, y, scale, strides, sizes: tl.constexpr):
    q, k, v = given
    keys, values, filled = state
    q_row, q_head, k_row, k_head, v_row, v_head = strides[0], strides[1], strides[2], strides[3], strides[4], strides[5]
    state_row, state_place, filled_row, positions_row = strides[6], strides[7], strides[8], strides[9]
    heads: tl.constexpr = sizes[0]
    group: tl.constexpr = sizes[1]
    channels: tl.constexpr = sizes[2]
    places: tl.constexpr = sizes[3]
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)  # a state may have more than 2^31 values
    own, at, c = head // group, tl.load(positions + row * positions_row), tl.arange(0, channels)
    query = tl.load(q + row * q_row + head * q_head + c).to(tl.float32) * scale
    new_key, new_value = tl.load(k + row * k_row + own * k_head + c), tl.load(v + row * v_row + own * v_head + c)
    keys += row * state_row + own * channels
    values += row * state_row + own * channels
    if head % group == 0:
        tl.store(keys + at * state_place + c, new_key)
        tl.store(values + at * state_place + c, new_value)
        if own == 0:
            tl.store(filled + row * filled_row + at, 1)
    most, mass, total = tl.sum(query * new_key.to(tl.float32)), 1.0, new_value.to(tl.float32)
    for start in range(0, at, places):
        place = start + tl.arange(0, places)
        there = place < at
        key = tl.load(keys + place[:, None] * state_place + c[None, :], mask=there[:, None], other=0.0)
        score = tl.sum(key.to(tl.float32) * query[None, :], axis=1)
        score = tl.where(there, score, float("-inf"))
        highest = tl.maximum(most, tl.max(score))
        share, before = tl.exp(score - highest), tl.exp(most - highest)
        value = tl.load(values + place[:, None] * state_place + c[None, :], mask=there[:, None], other=0.0)
        total = total * before + tl.sum(share[:, None] * value.to(tl.float32), axis=0)
        most, mass = highest, mass * before + tl.sum(share)
    tl.store(y + (row * heads + head) * channels + c, (total / mass).to(y.dtype.element_ty))


def launch(
    q: Tensor, k: Tensor, v: Tensor, state: tuple[Tensor, Tensor, Tensor], positions: Tensor, scale: float
) -> Tensor:
    """y [b h c]; key and value are written to the state."""
    keys, values, filled = state
    (rows, heads, channels), groups = q.shape, k.shape[1]
    assert keys.is_contiguous() and values.is_contiguous()
    q, k, v = (x if x.stride(2) == 1 else x.contiguous() for x in (q, k, v))
    y = torch.empty(rows, heads, channels, dtype=q.dtype, device=q.device)
    strides = (*q.stride()[:2], *k.stride()[:2], *v.stride()[:2], *keys.stride()[:2], filled.stride(0))
    sizes = (heads, heads // groups, channels, _PLACES)
    state = keys, values, filled.view(torch.uint8)
    _step[(rows, heads)]((q, k, v), state, positions, y, scale, (*strides, positions.stride(0)), sizes, num_warps=4)
    return y
