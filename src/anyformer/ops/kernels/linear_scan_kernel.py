"""The kernels of `linear_scan_gpu`: one program for each row, chunk of steps and block of channels, all in parallel.

    h_t = a_t h_{t-1} + b_t,  g_t = dh_t + u_{t+1},  u_t = a_t g_t,  da_t = g_t h_{t-1},  db_t = g_t

A program keeps its block in registers and loads many steps before it needs the first of them. If there are too few
blocks to keep a GPU busy, the steps are cut into chunks: `_edges` scans each chunk from a zero state, `_scan` computes
the start states of the chunks from their decays and sums, and then `_scan` or `_gradients` scans all of them. Sums over
channels that share an `a` are left in parts and added by torch, in a deterministic order.
"""

# mypy: ignore-errors
# ruff: noqa: RUF005
# A type checker does not understand Triton's language, which has no starred tuples.

import torch
import triton
import triton.language as tl
from torch import Tensor

from anyformer.ops.recurrence.linear_scan import Channels

_AHEAD = tl.constexpr(16)
_AHEAD_BACK = tl.constexpr(8)
"""Steps that are loaded at once; the backward pass loads more sequences."""
_PROGRAMS = 2048
"""Programs that are enough to make a large GPU memory-bound."""
_LEAST_CHUNK = 32
_FEWEST_CHUNKS = 4
"""Chunks cost a second pass over memory; with fewer than these a single pass is faster."""


@triton.jit
def _steps(length, chunk, sizes: tl.constexpr):
    """The chunk of a program, its row, and its first step and the one after its last, all counted over all rows, in 64
    bits as tensors may have more than 2^31 values."""
    number, chunks = tl.program_id(0) // sizes.blocks, tl.cdiv(length, chunk)
    row = (number // chunks).to(tl.int64)
    within = number % chunks * chunk
    first = row * length + within
    return number.to(tl.int64), row, first, first + tl.minimum(chunk, length - within)


@triton.jit
def _lines(sizes: tl.constexpr):
    """The lines of a program's block."""
    return tl.program_id(0) % sizes.blocks // sizes.across * sizes.high + tl.arange(0, sizes.high)


@triton.jit
def _places(sizes: tl.constexpr):
    """Offsets of a program's block in h and in a, and masks of both."""
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
    """Decays and inputs of the steps from t on; steps outside the chunk change nothing."""
    c, a_c, inside, a_inside = _places(sizes)
    decays_ahead, added = (), ()
    for j in tl.static_range(_AHEAD):
        at = t + turn * j
        there = (at >= first) & (at < end)
        decays_ahead = decays_ahead + (_load(a + at * sizes.decays + a_c, a_inside & there, 1.0),)
        added = added + (_load(b + at * sizes.channels + c, inside & there, 0.0),)
    return decays_ahead, added


@triton.jit(do_not_specialize=["length", "chunk"])  # one kernel for all lengths
def _scan(h, inputs, starts, length, chunk, sizes: tl.constexpr, turn: tl.constexpr, before: tl.constexpr):
    """Every h, or the state `before` every step. `inputs`: a and b."""
    a, b = inputs
    number, _, first, end = _steps(length, chunk, sizes)
    c, _, inside, _ = _places(sizes)
    state = _load(starts + number * sizes.channels + c, inside, 0.0)
    begin = first if turn > 0 else end - 1
    for at in range(0, (end - first).to(tl.int32), _AHEAD):
        decays_ahead, added = _next(a, b, begin + turn * at, first, end, sizes, turn)
        for j in tl.static_range(_AHEAD):
            t = begin + turn * (at + j)
            place, there = h + t * sizes.channels + c, inside & (t >= first) & (t < end)
            if before:
                tl.store(place, state, mask=there)
            state = decays_ahead[j] * state + added[j]
            if not before:
                tl.store(place, state, mask=there)


@triton.jit(do_not_specialize=["length", "chunk"])
def _edges(keeps, adds, a, b, length, chunk, sizes: tl.constexpr, turn: tl.constexpr):
    """The decay over a chunk, and the sum that it adds: to h, or from the end to u."""
    number, _, first, end = _steps(length, chunk, sizes)
    c, a_c, inside, a_inside = _places(sizes)
    state, decay = tl.zeros(c.shape, dtype=tl.float32), a_inside.to(tl.float32)
    begin = first if turn > 0 else end - 1
    for at in range(0, (end - first).to(tl.int32), _AHEAD):
        decays_ahead, added = _next(a, b, begin + turn * at, first, end, sizes, turn)
        for j in tl.static_range(_AHEAD):
            state = decays_ahead[j] * state + added[j] if turn > 0 else decays_ahead[j] * (state + added[j])
            decay *= decays_ahead[j]
    tl.store(adds + number * sizes.channels + c, state, mask=inside)
    tl.store(keeps + number * sizes.decays + a_c, decay, mask=a_inside)  # all that share it store the same value


@triton.jit(do_not_specialize=["length", "chunk"])
def _gradients(by, saved, dh, ends, length, chunk, sizes: tl.constexpr):
    """Writes the gradients `by`: of a in parts, of b and of the start. `saved`: a, h and the start."""
    by_a, by_b, by_start = by
    a, h, start = saved
    number, row, first, end = _steps(length, chunk, sizes)
    c, a_c, inside, a_inside = _places(sizes)
    line, piece, begin = _lines(sizes), tl.program_id(0) % sizes.across, row * length
    u = _load(ends + number * sizes.channels + c, inside, 0.0)
    for at in range(0, (end - first).to(tl.int32), _AHEAD_BACK):
        decays_ahead, slope, states = (), (), ()
        for j in tl.static_range(_AHEAD_BACK):
            t = end - 1 - at - j
            there = t >= first
            earlier = tl.where(t > begin, h + (t - 1) * sizes.channels, start + row * sizes.channels)
            decays_ahead = decays_ahead + (_load(a + t * sizes.decays + a_c, a_inside & there, 1.0),)
            slope = slope + (_load(dh + t * sizes.channels + c, inside & there, 0.0),)
            states = states + (_load(earlier + c, inside & there, 0.0),)
        for j in tl.static_range(_AHEAD_BACK):
            t = end - 1 - at - j
            there, g = t >= first, slope[j] + u
            tl.store(by_b + t * sizes.channels + c, g, mask=inside & there)
            if sizes.shared:
                part = (t * sizes.lines + line) * sizes.across + piece
                tl.store(by_a + part, tl.sum(g * states[j], axis=1), mask=(line < sizes.lines) & there)
            else:
                tl.store(by_a + t * sizes.channels + c, g * states[j], mask=inside & there)
            u = decays_ahead[j] * g
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
    """Gradients of a, of b in its dtype, and of the start."""
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
    """The start state of every chunk [b n *d]."""
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
    return triton.cdiv(length, chunks) if chunks >= _FEWEST_CHUNKS else length


def _programs(b: Tensor, chunk: int, sizes: Channels) -> tuple[int]:
    return (b.shape[0] * triton.cdiv(b.shape[1], chunk) * sizes.blocks,)
