"""The kernels of `packed_gpu`: one program for each block of tokens and head, which loops over the tokens they see.

y_i = sum_j p_ij v_j,  p_ij = exp(scale q_i . k_j - lse_i);  delta_i = y_i . dy_i,  ds_ij = p_ij (dy_i . v_j - delta_i)
dq_i = scale sum_j ds_ij k_j,  dk_j = scale sum_i ds_ij q_i,  dv_j = sum_i p_ij dy_i          (arXiv 2205.14135)
The tokens that a token sees are a contiguous range whose bounds increase from token to token, and so are the tokens
that see it: a block loops from the begin of its first token's range to the end of its last one's. Exponentials are to
base 2.
"""

# mypy: ignore-errors
# A type checker does not understand Triton's language.

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

_LEAST = tl.constexpr(-3.0e38)
"""A score below all others, but finite, so that differences are defined."""
_LOG2_E = tl.constexpr(1.4426950408889634)
_LONG = 256
"""Average tokens of a document from which on tiles are larger."""


@triton.jit
def _between(documents, at, n, back, ahead):
    """Begin and end of the range that a token sees; empty after the last token."""
    first, last, length = documents
    if first is None:
        begin = at // length * length
        begin, end = tl.where(at < n, begin, n), tl.where(at < n, begin + length, 0)
    else:
        begin, end = tl.load(first + at, mask=at < n, other=n), tl.load(last + at, mask=at < n, other=0)
    return tl.maximum(begin, at - back), tl.minimum(end, at + ahead + 1)


@triton.jit
def _range(documents, start, n, back, ahead, size: tl.constexpr):
    """The union of the ranges of all tokens of a block."""
    begin, _ = _between(documents, start, n, back, ahead)
    _, end = _between(documents, tl.minimum(start + size, n) - 1, n, back, ahead)
    return begin, end


@triton.jit
def _common(documents, start, n, back, ahead, size: tl.constexpr):
    """The intersection of the ranges of all tokens of a block; empty if the block extends past the last token."""
    begin, _ = _between(documents, start + size - 1, n, back, ahead)
    _, end = _between(documents, start, n, back, ahead)
    return begin, end


@triton.jit
def _masked(score, start, begin, end, common, size: tl.constexpr):
    """Masks the scores of a tile unless all tokens of the block see all of it."""
    if (start < common[0]) | (start + size > common[1]):
        place = start + tl.arange(0, size)[None, :]
        score = tl.where((place >= begin[:, None]) & (place < end[:, None]), score, float("-inf"))
    return score


@triton.jit
def _places(start, stride, size: tl.constexpr, channels: tl.constexpr):
    """Offsets of a tile: 64 bits for its start, as tensors may have more than 2^31 values, 32 bits inside."""
    return tl.cast(start, tl.int64) * stride + (tl.arange(0, size)[:, None] * stride + tl.arange(0, channels)[None, :])


@triton.jit
def _tile(x, start, stride, end, size: tl.constexpr, channels: tl.constexpr):
    """A tile, with zeros from `end` on."""
    there = tl.arange(0, size)[:, None] < end - start
    return tl.load(x + _places(start, stride, size, channels), mask=there, other=0.0)


@triton.jit
def _keep(x, values, start, stride, end, size: tl.constexpr, channels: tl.constexpr):
    there = tl.arange(0, size)[:, None] < end - start
    tl.store(x + _places(start, stride, size, channels), values.to(x.dtype.element_ty), mask=there)


@triton.jit
def _forward(inputs, out, documents, strides, limits, scale, sizes: tl.constexpr):
    q, k, v = inputs
    y, lse = out
    n, back, ahead = limits
    heads: tl.constexpr = sizes[0]
    group: tl.constexpr = heads // sizes[1]
    channels: tl.constexpr = sizes[2]
    queries: tl.constexpr = sizes[3]
    keys: tl.constexpr = sizes[4]
    start, head = tl.program_id(0) * queries, tl.program_id(1)
    k += head // group * strides[3]
    v += head // group * strides[5]
    tokens = start + tl.arange(0, queries)
    begin, end = _between(documents, tokens, n, back, ahead)
    low, high = _range(documents, start, n, back, ahead, queries)
    common = _common(documents, start, n, back, ahead, queries)
    query = _tile(q + head * strides[1], start, strides[0], n, queries, channels)
    most, mass = tl.full([queries], _LEAST, dtype=tl.float32), tl.zeros([queries], dtype=tl.float32)
    total = tl.zeros([queries, channels], dtype=tl.float32)
    scale *= _LOG2_E
    for at in range(low, high, keys):
        key = _tile(k, at, strides[2], high, keys, channels)
        value = _tile(v, at, strides[4], high, keys, channels)
        score = _masked(tl.dot(query, key.T), at, begin, end, common, keys)
        highest = tl.maximum(most, tl.max(score, axis=1) * scale)
        share, before = tl.exp2(score * scale - highest[:, None]), tl.exp2(most - highest)
        total = tl.dot(share.to(value.dtype), value, total * before[:, None])
        most, mass = highest, mass * before + tl.sum(share, axis=1)
    mass = tl.where(mass > 0, mass, 1.0)  # a token that sees nothing gets zeros
    _keep(y + head * channels, total / mass[:, None], start, heads * channels, n, queries, channels)
    tl.store(lse + tl.cast(head, tl.int64) * n + tokens, most + tl.log2(mass), mask=tokens < n)


@triton.jit
def _by_queries(inputs, saved, out, documents, strides, limits, scale, sizes: tl.constexpr):
    q, k, v = inputs
    y, lse, dy = saved
    dq, both = out
    n, back, ahead = limits
    heads: tl.constexpr = sizes[0]
    group: tl.constexpr = heads // sizes[1]
    channels: tl.constexpr = sizes[2]
    queries: tl.constexpr = sizes[3]
    keys: tl.constexpr = sizes[4]
    start, head = tl.program_id(0) * queries, tl.program_id(1)
    k += head // group * strides[3]
    v += head // group * strides[5]
    tokens = start + tl.arange(0, queries)
    begin, end = _between(documents, tokens, n, back, ahead)
    low, high = _range(documents, start, n, back, ahead, queries)
    common = _common(documents, start, n, back, ahead, queries)
    query = _tile(q + head * strides[1], start, strides[0], n, queries, channels)
    slope = _tile(dy + head * channels, start, heads * channels, n, queries, channels)
    product = slope.to(tl.float32) * _tile(y + head * channels, start, heads * channels, n, queries, channels)
    mean, row = tl.sum(product, axis=1), tl.cast(head, tl.int64) * n + tokens
    log_mass = tl.load(lse + row, mask=tokens < n, other=0.0)
    tl.store(both + 2 * row, log_mass, mask=tokens < n)
    tl.store(both + 2 * row + 1, mean, mask=tokens < n)
    total = tl.zeros([queries, channels], dtype=tl.float32)
    for at in range(low, high, keys):
        key = _tile(k, at, strides[2], high, keys, channels)
        value = _tile(v, at, strides[4], high, keys, channels)
        score = tl.dot(query, key.T) * (scale * _LOG2_E) - log_mass[:, None]
        share = tl.exp2(_masked(score, at, begin, end, common, keys))
        change = share * (tl.dot(slope, value.T) - mean[:, None])
        total = tl.dot(change.to(key.dtype), key, total)
    _keep(dq + head * channels, total * scale, start, strides[6], n, queries, channels)


@triton.jit
def _by_keys(inputs, saved, out, documents, strides, limits, scale, sizes: tl.constexpr):
    q, k, v = inputs
    dy, both = saved
    dk, dv = out
    n, back, ahead = limits
    heads: tl.constexpr = sizes[0]
    groups: tl.constexpr = sizes[1]
    group: tl.constexpr = heads // groups
    channels: tl.constexpr = sizes[2]
    queries: tl.constexpr = sizes[3]
    keys: tl.constexpr = sizes[4]
    start, kv_head = tl.program_id(0) * keys, tl.program_id(1)
    begin, end = _between(
        documents, start + tl.arange(0, keys), n, ahead, back
    )  # the tokens that see a key: the band reversed
    low, high = _range(documents, start, n, ahead, back, keys)
    common = _common(documents, start, n, ahead, back, keys)
    key = _tile(k + kv_head * strides[3], start, strides[2], n, keys, channels)
    value = _tile(v + kv_head * strides[5], start, strides[4], n, keys, channels)
    by_key, by_value = tl.zeros([keys, channels], dtype=tl.float32), tl.zeros([keys, channels], dtype=tl.float32)
    for member in range(group):
        head = kv_head * group + member
        row = tl.cast(head, tl.int64) * n
        for at in range(low, high, queries):
            query = _tile(q + head * strides[1], at, strides[0], high, queries, channels)
            slope = _tile(dy + head * channels, at, heads * channels, high, queries, channels)
            log_mass, mean = tl.split(_tile(both + 2 * row, at, 2, high, queries, 2))
            score = tl.dot(key, query.T) * (scale * _LOG2_E) - log_mass[None, :]
            share = tl.exp2(_masked(score, at, begin, end, common, queries))
            by_value = tl.dot(share.to(slope.dtype), slope, by_value)
            change = share * (tl.dot(value, slope.T) - mean[None, :])
            by_key = tl.dot(change.to(query.dtype), query, by_key)
    _keep(dk + kv_head * channels, by_key * scale, start, strides[6], n, keys, channels)
    _keep(dv + kv_head * channels, by_value, start, strides[7], n, keys, channels)


class TilePlan(NamedTuple):
    """Launch parameters of a kernel: queries and keys of a tile, warps, and pipeline stages."""

    queries: int
    keys: int
    warps: int
    stages: int


class KernelInputs(NamedTuple):
    """Inputs of all kernels: q [n h c], k and v [n g c], and the begin and end of each token's document."""

    q: Tensor
    k: Tensor
    v: Tensor
    first: Tensor | None
    """None: all documents have the same length."""
    last: Tensor | None
    back: int
    """Number of earlier tokens that a token sees; -1: all of its document."""
    ahead: int
    length: int
    """Tokens of a document; the average if they differ."""
    scale: float


def plan(length: int) -> tuple[TilePlan, TilePlan, TilePlan]:
    """Launch parameters of the forward pass, of dq, and of dk and dv, for documents of this length."""
    step = 32 if length < _LONG else 64  # most of a wide tile would be masked in short documents
    return TilePlan(64, step, 4, 3), TilePlan(64, step, 4, 3), TilePlan(step, 64, 4, 3)


def forward(inputs: KernelInputs, how: TilePlan) -> tuple[Tensor, Tensor]:
    """y [n h c], and the log2 of each query's sum of exponentials [h n]."""
    n, heads, _ = inputs.q.shape
    y = torch.empty_like(inputs.q, memory_format=torch.contiguous_format)
    out = y, y.new_empty(heads, n, dtype=torch.float32)
    _forward[triton.cdiv(n, how.queries), heads](inputs[:3], out, *_arguments(inputs, how), **_options(how))
    return out


def by_queries(inputs: KernelInputs, y: Tensor, lse: Tensor, dy: Tensor, dq: Tensor, how: TilePlan) -> Tensor:
    """Writes dq. Returns lse and delta of each query interleaved [h n 2], because `by_keys` reads them together."""
    n, heads, _ = inputs.q.shape
    both, programs = lse.new_empty(heads, n, 2), (triton.cdiv(n, how.queries), heads)
    _by_queries[programs](inputs[:3], (y, lse, dy), (dq, both), *_arguments(inputs, how, dq), **_options(how))
    return both


def by_keys(inputs: KernelInputs, both: Tensor, dy: Tensor, dk: Tensor, dv: Tensor, how: TilePlan) -> None:
    """Writes dk and dv."""
    n, groups, _ = inputs.k.shape
    programs = triton.cdiv(n, how.keys), groups
    _by_keys[programs](inputs[:3], (dy, both), (dk, dv), *_arguments(inputs, how, dk, dv), **_options(how))


def _arguments(inputs: KernelInputs, how: TilePlan, *gradients: Tensor) -> tuple[Any, ...]:
    q, k, v, first, last, back, ahead, length, scale = inputs
    n, heads, channels = q.shape
    assert n < 1 << 30 and all(x.stride(2) == 1 for x in (q, k, v))
    assert first is None or last is None or first.dtype == last.dtype == torch.int32
    assert all(x.stride()[1:] == (channels, 1) for x in gradients)
    strides = tuple(stride for x in (q, k, v) for stride in x.stride()[:2]) + tuple(x.stride(0) for x in gradients)
    limits = n, *(n if bound < 0 else min(bound, n) for bound in (back, ahead))
    return (first, last, length), strides, limits, scale, (heads, k.shape[1], channels, how.queries, how.keys)


def _options(how: TilePlan) -> dict[str, int]:
    return {"num_warps": how.warps, "num_stages": how.stages}
