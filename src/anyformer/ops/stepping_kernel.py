"""The kernel of `stepping`: a program for each row and head goes through the filled places of its keys and values once.

Each of the places read at a time keeps sums of its own, over every so many places: `most` is the largest score so far,
`mass` the sum of exp(score - most), `total` that of exp(score - most) value. They meet once, behind the loop: within it
no warp waits for another. The new token comes from registers, so no program waits for what another one writes.
"""

# mypy: ignore-errors
# Triton's language is no Python that a type checker could follow.

import torch
import triton
import triton.language as tl
from torch import Tensor

_FEW = 264
"""Programs, two for each processor of a large GPU: these must each have much on its way at once."""
_STAGES = 4
"""While one turn is summed up, the next are on their way to shared memory. Loads into registers would not do: the
assembler puts each off until it is needed, and a turn waits for one after another."""
_MOST_PLACES = 256


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
    group: tl.constexpr = heads // groups
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)  # a state may have more than 2^31 values
    own, at, c = head // group, tl.load(positions + row * positions_row), tl.arange(0, channels)
    given += row * given_row + c
    query = tl.load(given + head * given_head).to(tl.float32) * scale
    new_key = tl.load(given + (heads + own) * given_head)
    new_value = tl.load(given + (heads + groups + own) * given_head)
    keys += row * state_row + own * channels
    values += row * state_row + own * channels
    most = tl.full([places], -1e30, tl.float32)  # and not -inf: there is no difference of two of those
    mass = tl.zeros([places], tl.float32)
    total = tl.zeros([places, channels], tl.float32)
    for start in tl.range(0, at, places, num_stages=stages):
        place = start + tl.arange(0, places)
        there, where = place < at, place[:, None] * state_place + c[None, :]
        key = tl.load(keys + where, mask=there[:, None], other=0.0)
        value = tl.load(values + where, mask=there[:, None], other=0.0)
        score = tl.where(there, tl.sum(key.to(tl.float32) * query[None, :], axis=1), float("-inf"))
        highest = tl.maximum(most, score)
        share, before = tl.exp(score - highest), tl.exp(most - highest)
        total = total * before[:, None] + share[:, None] * value.to(tl.float32)
        most, mass = highest, mass * before + share
    new_score = tl.sum(query * new_key.to(tl.float32))
    highest = tl.maximum(tl.max(most), new_score)
    share, new_share = tl.exp(most - highest), tl.exp(new_score - highest)
    mass = tl.sum(mass * share) + new_share
    total = tl.sum(total * share[:, None], axis=0) + new_share * new_value.to(tl.float32)
    tl.store(y + (row * heads + head) * channels + c, (total / mass).to(y.dtype.element_ty))
    if head % group == 0:
        tl.store(keys + at * state_place + c, new_key)
        tl.store(values + at * state_place + c, new_value)
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
    places, warps = plan(rows * heads, channels, given.element_size())
    state, sizes = (keys, values, filled.view(torch.uint8)), (heads, groups, channels, places, _STAGES)
    _step[(rows, heads)](given, state, positions, y, scale, strides, sizes, num_warps=warps)
    return y


def plan(programs: int, channels: int, item_bytes: int) -> tuple[int, int]:
    """Places of a turn, and warps: where programs are few 16 kilobytes of keys at a time, else 4, so that many fit."""
    warps, tile_bytes = (8, 1 << 14) if programs < _FEW else (4, 1 << 12)
    return min(tile_bytes // (item_bytes * channels), _MOST_PLACES), warps
