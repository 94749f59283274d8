"""The kernel of `attend_step`: one program for each row and head reads the filled slots of its cache once.

Each slot of a tile has running sums of its own: `most` is the largest score so far, `mass` the sum of exp(score -
most), `total` that of exp(score - most) value. They are combined once, after the loop, so that no warp waits for
another inside it. The sums start with the new token, read from the projection and not from the cache, so that no
program depends on another one's write.
"""

# mypy: ignore-errors
# A type checker does not understand Triton's language.

import torch
import triton
import triton.language as tl
from torch import Tensor

from anyformer.ops.kernels.dependent_launch import begins_early, gdc_launch_dependents, gdc_wait

_FEW = 264
"""Programs below which each needs many loads in flight: two for each processor of a large GPU."""
_SHORT = 512
"""Slots of a cache up to which tiles are small: a large tile takes its time even if few slots are filled."""
_MOST_PLACES = 256


@triton.jit
def _together(most, mass, other_most, other_mass):
    highest = tl.maximum(most, other_most)
    return highest, mass * tl.exp(most - highest) + other_mass * tl.exp(other_most - highest)


@triton.jit
def _step(fused, state, positions, y, scale, strides, sizes: tl.constexpr):
    keys, values, filled = state
    fused_row, fused_head, state_row, state_place = strides[0], strides[1], strides[2], strides[3]
    filled_row, positions_row = strides[4], strides[5]
    heads: tl.constexpr = sizes[0]
    groups: tl.constexpr = sizes[1]
    channels: tl.constexpr = sizes[2]
    places: tl.constexpr = sizes[3]
    stages: tl.constexpr = sizes[4]
    early: tl.constexpr = sizes[5]
    if early:
        gdc_launch_dependents()
        gdc_wait()
    group: tl.constexpr = heads // groups
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)  # a cache may have more than 2^31 values
    kv_head, at, c = head // group, tl.load(positions + row * positions_row), tl.arange(0, channels)
    fused += row * fused_row + c
    new_key, new_value = fused + (heads + kv_head) * fused_head, fused + (heads + groups + kv_head) * fused_head
    stored_key, stored_value = tl.load(new_key), tl.load(new_value)
    first = tl.arange(0, places)[:, None]  # below, a copy for each slot is on the threads that need it
    query = tl.load((fused + head * fused_head)[None, :] + first * 0).to(tl.float32) * scale
    most = tl.sum(query * tl.load(new_key[None, :] + first * 0).to(tl.float32), axis=1)
    mass = tl.where(tl.arange(0, places) == 0, 1.0, 0.0)
    total = tl.load(new_value[None, :] + first * 0, mask=first == 0, other=0.0).to(tl.float32)
    keys += row * state_row + kv_head * channels
    values += row * state_row + kv_head * channels
    for start in tl.range(0, at, places, num_stages=stages):
        place = start + tl.arange(0, places)
        there, where = place < at, place[:, None] * state_place + c[None, :]
        key = tl.load(keys + where, mask=there[:, None], other=0.0)
        value = tl.load(values + where, mask=there[:, None], other=0.0)
        score = tl.where(there, tl.sum(key.to(tl.float32) * query, axis=1), float("-inf"))
        highest = tl.maximum(most, score)
        share, before = tl.exp(score - highest), tl.exp(most - highest)
        total = total * before[:, None] + share[:, None] * value.to(tl.float32)
        most, mass = highest, mass * before + share
    highest, mass = tl.reduce((most, mass), 0, _together)
    total = tl.sum(total * (tl.exp(most - highest) / mass)[:, None], axis=0)
    tl.store(y + (row * heads + head) * channels + c, total.to(y.dtype.element_ty))
    if head % group == 0:
        tl.store(keys + at * state_place + c, stored_key)
        tl.store(values + at * state_place + c, stored_value)
        if kv_head == 0:
            tl.store(filled + row * filled_row + at, 1)


def launch(fused: Tensor, state: tuple[Tensor, Tensor, Tensor], positions: Tensor, scale: float) -> Tensor:
    """y [b h c]; writes the new key and value to the cache."""
    keys, values, filled = state
    (rows, both, channels), groups = fused.shape, keys.shape[2]
    heads = both - 2 * groups
    assert keys.is_contiguous() and values.is_contiguous()
    fused = fused if fused.stride(2) == 1 else fused.contiguous()
    y = torch.empty(rows, heads, channels, dtype=fused.dtype, device=fused.device)
    strides = *fused.stride()[:2], *keys.stride()[:2], filled.stride(0), positions.stride(0)
    places, warps, stages = plan(rows * heads, channels, fused.element_size(), keys.shape[1])
    early = begins_early(fused.device)
    state, sizes = (keys, values, filled.view(torch.uint8)), (heads, groups, channels, places, stages, early)
    options = {"num_warps": warps, **({"launch_pdl": True} if early else {})}
    _step[(rows, heads)](fused, state, positions, y, scale, strides, sizes, **options)
    return y


def plan(programs: int, channels: int, item_bytes: int, room: int) -> tuple[int, int, int]:
    """Slots of a tile, warps, and stages: tiles in flight to shared memory while one is summed. Loads into registers do
    not work: the assembler delays each until it is needed. With few programs each has more in flight, 32 or 64 KB of
    keys; with many each has less, so that they fit.
    """
    if programs < _FEW:
        warps, tile_bytes, stages = (8, 1 << 14, 4) if room > _SHORT else (4, 1 << 12, 8)
    else:
        warps, tile_bytes, stages = 4, 1 << 12, 4
    return min(tile_bytes // (item_bytes * channels), _MOST_PLACES), warps, stages
