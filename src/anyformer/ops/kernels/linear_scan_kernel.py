"""The kernels of `linear_scan_gpu`: a program for each row, chunk of steps and block of channels, all side by side.

    h_t = a_t h_{t-1} + b_t,  g_t = dh_t + u_{t+1},  u_t = a_t g_t,  da_t = g_t h_{t-1},  db_t = g_t

A program keeps its block in registers and asks the memory for many steps before it needs the first of them. Where
blocks alone are too few to keep a GPU busy, the steps are cut into chunks: `_edges` goes through each as if nothing
were before it, `_scan` through what they keep and add, which says what each begins with, and then `_scan` or
`_gradients` through all of them. Sums over channels that share an `a` are left in parts and added by torch, in an order
that is always the same.
"""

# mypy: ignore-errors
# ruff: noqa: RUF005
# Triton's language is no Python that a type checker could follow, and has no starred tuples.

import torch
import triton
import triton.language as tl
from torch import Tensor

from anyformer.ops.recurrence.scan_channels import Channels

_AHEAD = tl.constexpr(16)
_AHEAD_BACK = tl.constexpr(8)
"""Steps that are asked for at once; in a backward pass there are more sequences to ask for."""
_PROGRAMS = 2048
"""Enough for the memory of a large GPU to be the limit."""
_LEAST_CHUNK = 32
_WORTH = 4
"""Chunks cost a second pass over the memory; fewer than these do not win it back."""


@triton.jit
def _steps(length, chunk, sizes: tl.constexpr):
    """Of a program: its chunk and the row of that, counted through all rows; and its first step and the one behind its
    last, counted likewise, in 64 bits as tensors may have more than 2^31 values."""
    number, chunks = tl.program_id(0) // sizes.blocks, tl.cdiv(length, chunk)
    row = (number // chunks).to(tl.int64)
    within = number % chunks * chunk
    first = row * length + within
    return number.to(tl.int64), row, first, first + tl.minimum(chunk, length - within)


@triton.jit
def _lines(sizes: tl.constexpr):
    """Of a program: the lines of its block."""
    return tl.program_id(0) % sizes.blocks // sizes.across * sizes.high + tl.arange(0, sizes.high)


@triton.jit
def _places(sizes: tl.constexpr):
    """Of a program: its places in h and in a, and which of both there are."""
    line, piece = _lines(sizes)[:, None], tl.program_id(0) % sizes.across
    column = piece * sizes.wide + tl.arange(0, sizes.wide)[None, :]
    a_c, a_inside = line // (sizes.repeats * sizes.inner) * sizes.inner + line % sizes.inner, line < sizes.lines
    inside = a_inside & (column < sizes.width)
    if not sizes.shared:
        a_c, a_inside = a_c * sizes.width + column, inside
    return line * sizes.width + column, a_c, inside, a_inside


@triton.jit
def _load(at, there, other: tl.constexpr):
    return tl.load(at, mask=there, other=other).to(tl.float32)


@triton.jit
def _next(a, b, t, first, end, sizes: tl.constexpr, turn: tl.constexpr):
    """Of the steps from t on, what each keeps and adds; those that are not there change nothing."""
    c, a_c, inside, a_inside = _places(sizes)
    kept, added = (), ()
    for j in tl.static_range(_AHEAD):
        at = t + turn * j
        there = (at >= first) & (at < end)
        kept = kept + (_load(a + at * sizes.decays + a_c, a_inside & there, 1.0),)
        added = added + (_load(b + at * sizes.channels + c, inside & there, 0.0),)
    return kept, added


@triton.jit(do_not_specialize=["length", "chunk"])  # one kernel for all lengths
def _scan(h, given, starts, length, chunk, sizes: tl.constexpr, turn: tl.constexpr, before: tl.constexpr):
    """Every h; or what every step finds, `before` it. `given`: a and b."""
    a, b = given
    number, _, first, end = _steps(length, chunk, sizes)
    c, _, inside, _ = _places(sizes)
    state = _load(starts + number * sizes.channels + c, inside, 0.0)
    begin = first if turn > 0 else end - 1
    for at in range(0, (end - first).to(tl.int32), _AHEAD):
        kept, added = _next(a, b, begin + turn * at, first, end, sizes, turn)
        for j in tl.static_range(_AHEAD):
            t = begin + turn * (at + j)
            place, there = h + t * sizes.channels + c, inside & (t >= first) & (t < end)
            if before:
                tl.store(place, state, mask=there)
            state = kept[j] * state + added[j]
            if not before:
                tl.store(place, state, mask=there)


@triton.jit(do_not_specialize=["length", "chunk"])
def _edges(keeps, adds, a, b, length, chunk, sizes: tl.constexpr, turn: tl.constexpr):
    """What a chunk keeps of what it begins with, and what it adds: to h, or from the end to u."""
    number, _, first, end = _steps(length, chunk, sizes)
    c, a_c, inside, a_inside = _places(sizes)
    state, whole = tl.zeros(c.shape, dtype=tl.float32), a_inside.to(tl.float32)
    begin = first if turn > 0 else end - 1
    for at in range(0, (end - first).to(tl.int32), _AHEAD):
        kept, added = _next(a, b, begin + turn * at, first, end, sizes, turn)
        for j in tl.static_range(_AHEAD):
            state = kept[j] * state + added[j] if turn > 0 else kept[j] * (state + added[j])
            whole *= kept[j]
    tl.store(adds + number * sizes.channels + c, state, mask=inside)
    tl.store(keeps + number * sizes.decays + a_c, whole, mask=a_inside)  # the same from all that share it


@triton.jit(do_not_specialize=["length", "chunk"])
def _gradients(by, saved, dh, ends, length, chunk, sizes: tl.constexpr):
    """`by`: a's, in parts; b's; and the start's. `saved`: a, h and the start."""
    by_a, by_b, by_start = by
    a, h, start = saved
    number, row, first, end = _steps(length, chunk, sizes)
    c, a_c, inside, a_inside = _places(sizes)
    line, piece, begin = _lines(sizes), tl.program_id(0) % sizes.across, row * length
    u = _load(ends + number * sizes.channels + c, inside, 0.0)
    for at in range(0, (end - first).to(tl.int32), _AHEAD_BACK):
        kept, slope, found = (), (), ()
        for j in tl.static_range(_AHEAD_BACK):
            t = end - 1 - at - j
            there = t >= first
            earlier = tl.where(t > begin, h + (t - 1) * sizes.channels, start + row * sizes.channels)
            kept = kept + (_load(a + t * sizes.decays + a_c, a_inside & there, 1.0),)
            slope = slope + (_load(dh + t * sizes.channels + c, inside & there, 0.0),)
            found = found + (_load(earlier + c, inside & there, 0.0),)
        for j in tl.static_range(_AHEAD_BACK):
            t = end - 1 - at - j
            there, g = t >= first, slope[j] + u
            tl.store(by_b + t * sizes.channels + c, g, mask=inside & there)
            if sizes.shared:
                part = (t * sizes.lines + line) * sizes.across + piece
                tl.store(by_a + part, tl.sum(g * found[j], axis=1), mask=(line < sizes.lines) & there)
            else:
                tl.store(by_a + t * sizes.channels + c, g * found[j], mask=inside & there)
            u = kept[j] * g
    tl.store(by_start + row * sizes.channels + c, u, mask=inside & (first == begin))


def forward(a: Tensor, b: Tensor, start: Tensor, sizes: Channels) -> Tensor:
    """Every h."""
    a, b, starts = a.contiguous(), b.contiguous(), start.float().contiguous()
    h = torch.empty_like(b, dtype=torch.float32)
    chunk = _chunk(b, sizes)
    if chunk < b.shape[1]:
        starts = _begun(a, b, starts, chunk, sizes, turn=1)
    _scan[_programs(b, chunk, sizes)](h, (a, b), starts, b.shape[1], chunk, sizes, 1, False, num_warps=1)
    return h


def backward(
    a: Tensor, start: Tensor, h: Tensor, dh: Tensor, low: torch.dtype, sizes: Channels
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of a, of b in its precision and of the start."""
    a, dh, first = a.contiguous(), dh.contiguous(), start.float().contiguous()
    (rows, length), chunk = h.shape[:2], _chunk(h, sizes)
    ends = torch.zeros_like(first)
    if chunk < length:
        ends = _begun(a, dh, ends, chunk, sizes, turn=-1)
    parts = h.new_empty(rows, length, *sizes.parts)
    by_b, by_start = torch.empty_like(h, dtype=low), torch.empty_like(first, dtype=start.dtype)
    by, saved = (parts, by_b, by_start), (a, h, first)
    _gradients[_programs(h, chunk, sizes)](by, saved, dh, ends, length, chunk, sizes, num_warps=1)
    by_a = parts if parts.numel() == a.numel() else parts.sum((3, 5) if sizes.shared else 3)
    return by_a.view(a.shape).to(a.dtype), by_b, by_start


def _begun(a: Tensor, b: Tensor, start: Tensor, chunk: int, sizes: Channels, turn: int) -> Tensor:
    """What every chunk begins with [b n *d]."""
    rows, length = b.shape[:2]
    chunks = triton.cdiv(length, chunk)
    keeps, adds = start.new_empty(rows, chunks, sizes.decays), start.new_empty(rows, chunks, sizes.channels)
    _edges[_programs(b, chunk, sizes)](keeps, adds, a, b, length, chunk, sizes, turn, num_warps=1)
    _scan[_programs(adds, chunks, sizes)](adds, (keeps, adds), start, chunks, chunks, sizes, turn, True, num_warps=1)
    return adds


def _chunk(b: Tensor, sizes: Channels) -> int:
    """Steps of a chunk."""
    rows, length = b.shape[:2]
    chunks = min(_PROGRAMS // (rows * sizes.blocks), length // _LEAST_CHUNK)
    return triton.cdiv(length, chunks) if chunks >= _WORTH else length


def _programs(b: Tensor, chunk: int, sizes: Channels) -> tuple[int]:
    return (b.shape[0] * triton.cdiv(b.shape[1], chunk) * sizes.blocks,)
