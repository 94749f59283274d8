"""The kernel of `stepping`: a program for each row and head goes through the filled places of its keys and values once.

Each of the places read at a time keeps sums of its own, over every so many places: `most` is the largest score so far,
`mass` the sum of exp(score - most), `total` that of exp(score - most) value. They meet once, behind the loop: within it
no warp waits for another. The new token is what they begin with: it comes from the product that made it, so no program
waits for what another one writes.
"""

# mypy: ignore-errors
# Triton's language is no Python that a type checker could follow.

import torch
import triton
import triton.language as tl
from torch import Tensor

from anyformer.ops.kernels.dependent_launch import begins_early, gdc_launch_dependents, gdc_wait

_FEW = 264
"""Programs, two for each processor of a large GPU: these must each have much on its way at once."""
_SHORT = 512
"""Places, up to which few programs take small turns: a large one costs its time even where little is filled."""
_MOST_PLACES = 256


@triton.jit
def _together(most, mass, other_most, other_mass):
    highest = tl.maximum(most, other_most)
    return highest, mass * tl.exp(most - highest) + other_mass * tl.exp(other_most - highest)


@triton.jit
def _step(given, state, positions, y, scale, strides, sizes: tl.constexpr):
    keys, values, filled = state
    given_row, given_head, state_row, state_place = strides[0], strides[1], strides[2], strides[3]
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
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)  # a state may have more than 2^31 values
    own, at, c = head // group, tl.load(positions + row * positions_row), tl.arange(0, channels)
    given += row * given_row + c
    new_key, new_value = given + (heads + own) * given_head, given + (heads + groups + own) * given_head
    kept_key, kept_value = tl.load(new_key), tl.load(new_value)
    first = tl.arange(0, places)[:, None]  # of what follows, a copy for each place lies on the threads that need it
    query = tl.load((given + head * given_head)[None, :] + first * 0).to(tl.float32) * scale
    most = tl.sum(query * tl.load(new_key[None, :] + first * 0).to(tl.float32), axis=1)
    mass = tl.where(tl.arange(0, places) == 0, 1.0, 0.0)
    total = tl.load(new_value[None, :] + first * 0, mask=first == 0, other=0.0).to(tl.float32)
    keys += row * state_row + own * channels
    values += row * state_row + own * channels
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
        tl.store(keys + at * state_place + c, kept_key)
        tl.store(values + at * state_place + c, kept_value)
        if own == 0:
            tl.store(filled + row * filled_row + at, 1)


def launch(given: Tensor, state: tuple[Tensor, Tensor, Tensor], positions: Tensor, scale: float) -> Tensor:
    """y [b h c]; key and value are written to the state."""
    keys, values, filled = state
    (rows, both, channels), groups = given.shape, keys.shape[2]
    heads = both - 2 * groups
    assert keys.is_contiguous() and values.is_contiguous()
    given = given if given.stride(2) == 1 else given.contiguous()
    y = torch.empty(rows, heads, channels, dtype=given.dtype, device=given.device)
    strides = *given.stride()[:2], *keys.stride()[:2], filled.stride(0), positions.stride(0)
    places, warps, stages = plan(rows * heads, channels, given.element_size(), keys.shape[1])
    early = begins_early(given.device)
    state, sizes = (keys, values, filled.view(torch.uint8)), (heads, groups, channels, places, stages, early)
    options = {"num_warps": warps, **({"launch_pdl": True} if early else {})}
    _step[(rows, heads)](given, state, positions, y, scale, strides, sizes, **options)
    return y


def plan(programs: int, channels: int, item_bytes: int, room: int) -> tuple[int, int, int]:
    """Places of a turn, warps, and stages: turns that are on their way to shared memory while one is summed up. Loads
    into registers would not do: the assembler puts each off until it is needed, and a turn waits for one after another.
    Of few programs each has more on its way, 32 or 64 kilobytes of keys; of many each has less, so that they fit.
    """
    if programs < _FEW:
        warps, tile_bytes, stages = (8, 1 << 14, 4) if room > _SHORT else (4, 1 << 12, 8)
    else:
        warps, tile_bytes, stages = 4, 1 << 12, 4
    return min(tile_bytes // (item_bytes * channels), _MOST_PLACES), warps, stages
