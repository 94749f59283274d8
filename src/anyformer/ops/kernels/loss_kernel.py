"""The kernel of `loss`: one program for each row of logits, which are overwritten by their gradient.

A lane reads a vector of logits at a time, from left to right, and keeps the largest so far, `most`, and the sum of
exp(logit - most), `mass`; lanes are combined once, at the end. The second pass goes from right to left, because the
last logits are still in the cache. The next tile is loaded while one is processed.
"""

# mypy: ignore-errors
# A type checker does not understand Triton's language.

import torch
import triton
import triton.language as tl
from torch import Tensor

_VECTOR = 16
"""Bytes that a lane reads at a time."""
_LANES = 1024
"""Vectors of a tile; each of the program's lanes takes two."""
_LONG = 1 << 17
"""Bytes of a row from which on tiles are twice as large, so that a program has a processor to itself: several rows
would evict each other from the cache before the second pass."""
_LEAST = tl.constexpr(-3.0e38)
_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _places(start, lanes: tl.constexpr, vector: tl.constexpr):
    return start + tl.arange(0, lanes)[:, None] * vector + tl.arange(0, vector)[None, :]


@triton.jit
def _tile(logits, start, width, lanes: tl.constexpr, vector: tl.constexpr):
    """A tile of logits, with zeros outside the row."""
    v = _places(start, lanes, vector)
    return tl.load(logits + v, mask=(v >= 0) & (v < width), other=0.0)


@triton.jit
def _clear(logits, width, lanes: tl.constexpr, vector: tl.constexpr):
    for start in range(0, width, lanes * vector):
        v = _places(start, lanes, vector)
        tl.store(logits + v, tl.zeros([lanes, vector], dtype=logits.dtype.element_ty), mask=v < width)


@triton.jit
def _capped(x, cap: tl.constexpr):
    """cap tanh(x / cap), or x without a cap."""
    x = x.to(tl.float32)
    if cap > 0:
        x = cap - 2 * cap / (1 + tl.exp2(x * (2 * _LOG2_E / cap)))
    return x


@triton.jit
def _more(most, mass, x):
    """Updates the maximum and the sum of a lane, to base 2, with one exponential for each value."""
    highest = tl.maximum(most, tl.max(x, axis=1) * _LOG2_E)
    shares = tl.exp2(x * _LOG2_E - highest[:, None])
    return highest, mass * tl.exp2(most - highest) + tl.sum(shares, axis=1)


@triton.jit
def _summed(
    logits, width, vocab, smoothing: tl.constexpr, cap: tl.constexpr, lanes: tl.constexpr, vector: tl.constexpr
):
    """Maximum and sum of every lane of a row, and the sum of its logits if labels are smoothed."""
    size: tl.constexpr = lanes * vector
    most, mass = tl.full([lanes], _LEAST, dtype=tl.float32), tl.zeros([lanes], dtype=tl.float32)
    total, following = tl.zeros([lanes], dtype=tl.float32), _tile(logits, 0, width, lanes, vector)
    full_tiles = vocab // size * size
    for start in range(0, full_tiles, size):
        x, following = _capped(following, cap), _tile(logits, start + size, width, lanes, vector)
        if smoothing > 0:
            total += tl.sum(x, axis=1)
        most, mass = _more(most, mass, x)
    x, inside = _capped(following, cap), _places(full_tiles, lanes, vector) < vocab
    if smoothing > 0:
        total += tl.sum(tl.where(inside, x, 0.0), axis=1)
    most, mass = _more(most, mass, tl.where(inside, x, float("-inf")))
    return most, mass, total


@triton.jit(do_not_specialize=["vocab"])
def _consume(logits, rows, width, vocab, z, how: tl.constexpr, tile: tl.constexpr):
    targets, weights, losses = rows
    smoothing: tl.constexpr = how[0]
    cap: tl.constexpr = how[1]
    learns: tl.constexpr = how[2]
    lanes: tl.constexpr = tile[0]
    vector: tl.constexpr = tile[1]
    size: tl.constexpr = lanes * vector
    row = tl.program_id(0).to(tl.int64)  # a chunk may have more than 2^31 values
    target, weight = tl.load(targets + row).to(tl.int32), tl.load(weights + row)
    logits += row * width
    if weight == 0.0:  # the logits may be anything
        tl.store(losses + row, 0.0)
        if learns:
            _clear(logits, width, lanes, vector)
    else:
        most, mass, total = _summed(logits, width, vocab, smoothing, cap, lanes, vector)
        target_logit, last = _capped(tl.load(logits + target), cap), (width - 1) // size * size
        if learns:
            following = _tile(logits, last, width, lanes, vector)
        top = tl.max(most)
        mass = tl.sum(mass * tl.exp2(most - top))
        bits = tl.log2(mass)
        lse = (top + bits) / _LOG2_E
        loss = (bits - (1 - smoothing) * (target_logit * _LOG2_E - top)) / _LOG2_E + z * lse * lse
        if smoothing > 0:
            loss -= smoothing * (tl.sum(total) / vocab * _LOG2_E - top) / _LOG2_E
        tl.store(losses + row, weight * loss)
        if learns:
            scale, even, hit = weight * (1 + 2 * z * lse) / mass, weight * smoothing / vocab, weight * (1 - smoothing)
            for done in range(0, width, size):
                start = last - done
                x, following = _capped(following, cap), _tile(logits, start - size, width, lanes, vector)
                slope, v = scale * tl.exp2(x * _LOG2_E - top) - even, _places(start, lanes, vector)
                if (target >= start) & (target < start + size) | (
                    start + size > vocab
                ):  # otherwise all columns are treated alike
                    x = tl.where(v < vocab, x, 0.0)  # the padding may hold NaN
                    slope = tl.where(v < vocab, tl.where(v == target, slope - hit, slope), 0.0)
                if cap > 0:
                    slope *= 1 - (x / cap) * (x / cap)
                tl.store(logits + v, slope.to(logits.dtype.element_ty), mask=v < width)


def launch(
    room: Tensor, vocab: int, targets: Tensor, weights: Tensor, losses: Tensor, how: tuple[float, float, bool, float]
) -> None:
    """The first `vocab` columns of `room` are logits and become their gradient; the rest aligns the rows and becomes 0.
    `how`: smoothing, z, whether to compute the gradient, and the cap of the logits or 0."""
    (count, width), (smoothing, z, learns, cap) = room.shape, how
    assert room.is_contiguous() and losses.is_contiguous()
    vector = _VECTOR // room.itemsize
    most = 2 * _LANES if width * room.itemsize > _LONG else _LANES
    lanes = min(most, triton.next_power_of_2(triton.cdiv(width, vector)))
    rows = targets.contiguous(), weights.contiguous(), losses
    with torch.cuda.device_of(room):
        _consume[(count,)](
            room, rows, width, vocab, z, (smoothing, cap, learns), (lanes, vector), num_warps=max(1, lanes // 64)
        )
