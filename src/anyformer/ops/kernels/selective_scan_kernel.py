"""The kernels of `selective_scan_gpu`: one program for each row, tile of tokens and block of channels, in parallel.

    h_t = e_t h_{t-1} + B_t dt_t x_t,  y_t = C_t h_t,  g_t = C_t dy_t + e_{t+1} g_{t+1},  e_t = exp(decay_dt_t A)

`_edges` scans every tile from a zero state, and in the backward pass from its end; `_chain` goes through the tiles one
after the other and replaces the results by the true states at their edges; then `_outputs` and `_gradients` scan all
tiles again. Every lane has one channel, holds the tokens of its tile in registers and processes one state after the
other; per-token states are never written to memory. Sums over channels and rows are left in parts and added by torch,
in a deterministic order.
"""

# mypy: ignore-errors
# ruff: noqa: RUF005
# A type checker does not understand Triton's language, which has no starred tuples.

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = tl.constexpr(32)
"""Channels of a program, which is one warp."""
_TILE = tl.constexpr(16)
"""Tokens of a program: as many as fit into registers in the backward pass."""
_AHEAD = tl.constexpr(8)
"""Tiles that `_chain` loads before it needs the first."""
_REGISTERS = 200
"""Registers of a lane in `_gradients`: no spills, and ten warps on a processor."""
_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _place(length, tiles, channels: tl.constexpr):
    """The tile of a program and its first token, counted over all rows, in 64 bits as tensors may have more than 2^31
    values; the number of tokens left in the row; and its block of channels."""
    blocks: tl.constexpr = (channels + _BLOCK - 1) // _BLOCK
    program = tl.program_id(0)
    tile, row = (program // blocks) % tiles, (program // blocks // tiles).to(tl.int64)
    return row * tiles + tile, row * length + tile * _TILE, length - tile * _TILE, program % blocks


@triton.jit
def _nothing():
    return tl.zeros([_BLOCK], dtype=tl.float32)


@triton.jit
def _tokens(at, step: tl.constexpr, inside, left):
    """Loads a value for each token of a tile; zeros after the last token, which change nothing."""
    values = ()
    for j in tl.static_range(_TILE):
        values = values + (tl.load(at + j * step, mask=inside & (j < left), other=0.0),)
    return values


@triton.jit
def _inputs(x, dt, step: tl.constexpr, inside, left):
    """dt x of each token."""
    values = ()
    for j in tl.static_range(_TILE):
        there = inside & (j < left)
        x_j, dt_j = tl.load(x + j * step, mask=there, other=0.0), tl.load(dt + j * step, mask=there, other=0.0)
        values = values + (dt_j * x_j,)
    return values


@triton.jit(do_not_specialize=["length", "tiles"])  # one kernel for all lengths
def _edges(edges, inputs, dy, length, tiles, states: tl.constexpr, channels: tl.constexpr, back: tl.constexpr):
    """Scans each tile alone, and stores its total time, which determines its decay."""
    h_edge, g_edge, time = edges
    a, x, dt, decay_dt, write, read = inputs
    tile, first, left, block = _place(length, tiles, channels)
    c = block * _BLOCK + tl.arange(0, _BLOCK)
    inside, offset, edge, one = c < channels, first * channels + c, tile * states * channels + c, first * states
    steps = _tokens(decay_dt + offset, channels, inside, left)
    dtx = _inputs(x + offset, dt + offset, channels, inside, left)
    if back:
        slope = _tokens(dy + offset, channels, inside, left)
    time_in_tile = _nothing()
    for j in tl.static_range(_TILE):
        time_in_tile += steps[j]
    tl.store(time + tile * channels + c, time_in_tile, mask=inside)
    for state in range(states):
        rate = tl.load(a + state * channels + c, mask=inside, other=0.0) * _LOG2_E
        w = _tokens(write + one + state, states, left > 0, left)
        h, decay = _nothing(), ()
        for j in tl.static_range(_TILE):
            decay = decay + (tl.exp2(rate * steps[j]),)
            h = decay[j] * h + w[j] * dtx[j]
        tl.store(h_edge + edge + state * channels, h, mask=inside)
        if back:
            r = _tokens(read + one + state, states, left > 0, left)
            g = _nothing()
            for j in tl.static_range(_TILE - 1, -1, -1):
                g = decay[j] * (g + r[j] * slope[j])
            tl.store(g_edge + edge + state * channels, g, mask=inside)


@triton.jit(do_not_specialize=["tiles"])
def _chain(edge, time, a, ends, tiles, states: tl.constexpr, channels: tl.constexpr, back: tl.constexpr):
    """Chains the tiles of one row, state and block of channels."""
    initial, final = ends
    blocks: tl.constexpr = (channels + _BLOCK - 1) // _BLOCK
    program = tl.program_id(0)
    row, state = (program // blocks // states).to(tl.int64), (program // blocks) % states
    c = (program % blocks) * _BLOCK + tl.arange(0, _BLOCK)
    inside, offset = c < channels, (row * states + state) * channels + c
    rate = tl.load(a + state * channels + c, mask=inside, other=0.0) * _LOG2_E
    h = tl.load(initial + offset, mask=inside, other=0.0)
    for start in range(0, tiles, _AHEAD):
        added, decay_ahead = (), ()
        for j in tl.static_range(_AHEAD):
            tile = row * tiles + (tiles - 1 - start - j if back else start + j)
            there = inside & (start + j < tiles)
            added = added + (tl.load(edge + (tile * states + state) * channels + c, mask=there, other=0.0),)
            decay_ahead = decay_ahead + (tl.exp2(rate * tl.load(time + tile * channels + c, mask=there, other=0.0)),)
        for j in tl.static_range(_AHEAD):
            tile = row * tiles + (tiles - 1 - start - j if back else start + j)
            tl.store(edge + (tile * states + state) * channels + c, h, mask=inside & (start + j < tiles))
            h = decay_ahead[j] * h + added[j]
    tl.store(final + offset, h, mask=inside)


@triton.jit(do_not_specialize=["length", "tiles"])  # one kernel for all lengths
def _outputs(y, inputs, starts, length, tiles, states: tl.constexpr, channels: tl.constexpr):
    a, x, dt, decay_dt, write, read = inputs
    tile, first, left, block = _place(length, tiles, channels)
    c = block * _BLOCK + tl.arange(0, _BLOCK)
    inside, offset, edge, one = c < channels, first * channels + c, tile * states * channels + c, first * states
    steps = _tokens(decay_dt + offset, channels, inside, left)
    dtx = _inputs(x + offset, dt + offset, channels, inside, left)
    total = (_nothing(),) * _TILE
    for state in range(states):
        rate = tl.load(a + state * channels + c, mask=inside, other=0.0) * _LOG2_E
        h = tl.load(starts + edge + state * channels, mask=inside, other=0.0)
        w = _tokens(write + one + state, states, left > 0, left)
        r = _tokens(read + one + state, states, left > 0, left)
        more = ()
        for j in tl.static_range(_TILE):
            h = tl.exp2(rate * steps[j]) * h + w[j] * dtx[j]
            more = more + (total[j] + r[j] * h,)
        total = more
    for j in tl.static_range(_TILE):
        tl.store(y + offset + j * channels, total[j], mask=inside & (j < left))


@triton.jit(do_not_specialize=["length", "tiles"])  # one kernel for all lengths
def _gradients(by, inputs, dy, edges, length, tiles, states: tl.constexpr, channels: tl.constexpr):
    """`edges`: h before the tile, and the gradient of h after it, which is overwritten by the tile's part of A's
    gradient. The gradients of write and read are parts as well, one for each block."""
    by_x, by_dt, by_decay_dt, by_write, by_read = by
    a, x, dt, decay_dt, write, read = inputs
    h_edge, g_edge = edges
    tile, first, left, block = _place(length, tiles, channels)
    c = block * _BLOCK + tl.arange(0, _BLOCK)
    inside, offset, edge, one = c < channels, first * channels + c, tile * states * channels + c, first * states
    blocks: tl.constexpr = (channels + _BLOCK - 1) // _BLOCK
    part = one + block * (tl.num_programs(0) // blocks // tiles).to(tl.int64) * length * states
    steps = _tokens(decay_dt + offset, channels, inside, left)
    dtx = _inputs(x + offset, dt + offset, channels, inside, left)
    slope = _tokens(dy + offset, channels, inside, left)
    by_dtx, by_steps = (_nothing(),) * _TILE, (_nothing(),) * _TILE
    for state in range(states):
        speed = tl.load(a + state * channels + c, mask=inside, other=0.0)
        h = tl.load(h_edge + edge + state * channels, mask=inside, other=0.0)
        g = tl.load(g_edge + edge + state * channels, mask=inside, other=0.0)
        w = _tokens(write + one + state, states, left > 0, left)
        decay, before = (), ()
        for j in tl.static_range(_TILE):
            decay, before = decay + (tl.exp2(speed * _LOG2_E * steps[j]),), before + (h,)
            h = decay[j] * h + w[j] * dtx[j]
            tl.store(by_read + part + j * states + state, tl.sum(h * slope[j]), mask=j < left)
        r = _tokens(read + one + state, states, left > 0, left)
        by_a, more_dtx, more_steps = _nothing(), (), ()
        for j in tl.static_range(_TILE - 1, -1, -1):
            g += r[j] * slope[j]
            tl.store(by_write + part + j * states + state, tl.sum(g * dtx[j]), mask=j < left)
            more_dtx = (by_dtx[j] + w[j] * g,) + more_dtx
            g *= decay[j]
            by_a += g * before[j] * steps[j]
            more_steps = (by_steps[j] + g * before[j] * speed,) + more_steps
        by_dtx, by_steps = more_dtx, more_steps
        tl.store(g_edge + edge + state * channels, by_a, mask=inside)
    for j in tl.static_range(_TILE):
        at, there = offset + j * channels, inside & (j < left)
        tl.store(by_x + at, by_dtx[j] * tl.load(dt + at, mask=there), mask=there)
        tl.store(by_dt + at, by_dtx[j] * tl.load(x + at, mask=there), mask=there)
        tl.store(by_decay_dt + at, by_steps[j], mask=there)


def forward(start: Tensor, inputs: list[Tensor]) -> tuple[Tensor, Tensor]:
    """y and the last h, from A and the sequences."""
    inputs = tuple(tensor.contiguous() for tensor in inputs)
    y, sizes = torch.empty_like(inputs[1]), _sizes(inputs)
    h, time = _room(start, sizes)
    _edges[_programs(y, sizes)]((h, h, time), inputs, y, *sizes, False, num_warps=1)
    last = _chained(h, time, inputs[0], start, sizes, back=False)
    _outputs[_programs(y, sizes)](y, inputs, h, *sizes, num_warps=1)
    return y, last


def backward(start: Tensor, inputs: list[Tensor], dy: Tensor, dlast: Tensor) -> list[Tensor]:
    """Gradients of the start, A and the sequences. The start states of the tiles are recomputed, from decays that g
    needs anyway: saving them would take n / 16 times the memory of x."""
    inputs, dy = tuple(tensor.contiguous() for tensor in inputs), dy.contiguous()
    (a, x, *_, read), sizes = inputs, _sizes(inputs)
    (h, time), g = _room(start, sizes), _room(start, sizes)[0]
    programs = _programs(x, sizes)
    _edges[programs]((h, g, time), inputs, dy, *sizes, True, num_warps=1)
    _chained(h, time, a, start, sizes, back=False)
    by_start = _chained(g, time, a, dlast, sizes, back=True)
    by_tokens = [torch.empty_like(x) for _ in range(3)]
    parts = [x.new_empty(triton.cdiv(x.shape[2], _BLOCK.value), *read.shape) for _ in range(2)]
    by = tuple(by_tokens + parts)
    _gradients[programs](by, inputs, dy, (h, g), *sizes, num_warps=1, maxnreg=_REGISTERS)
    return [by_start, g.sum((0, 1)), *by_tokens, *(part.sum(0) for part in parts)]


def _sizes(inputs: list[Tensor]) -> tuple[int, int, int, int]:
    """Tokens and tiles of a row, states and channels."""
    length = inputs[1].shape[1]
    return length, triton.cdiv(length, _TILE.value), *inputs[0].shape


def _programs(x: Tensor, sizes: tuple[int, int, int, int]) -> tuple[int]:
    return (x.shape[0] * sizes[1] * triton.cdiv(sizes[3], _BLOCK.value),)


def _room(start: Tensor, sizes: tuple[int, int, int, int]) -> tuple[Tensor, Tensor]:
    """Buffers for a state and a time of every tile."""
    rows, (_, tiles, states, channels) = len(start), sizes
    return start.new_empty(rows, tiles, states, channels), start.new_empty(rows, tiles, channels)


def _chained(
    edge: Tensor, time: Tensor, a: Tensor, first: Tensor, sizes: tuple[int, int, int, int], back: bool
) -> Tensor:
    """Chains all tiles; returns the state after the last."""
    last = torch.empty_like(first, memory_format=torch.contiguous_format)
    _, tiles, states, channels = sizes
    programs = len(first) * states * triton.cdiv(channels, _BLOCK.value)
    _chain[(programs,)](edge, time, a, (first.contiguous(), last), tiles, states, channels, back, num_warps=1)
    return last
