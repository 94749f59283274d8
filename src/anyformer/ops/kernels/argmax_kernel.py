"""The kernels of `argmax`: one finds the maximum of each chunk of words, one the maximum of the chunks of each row.

A score and its word are packed into one integer, so that a plain maximum finds both: the high bits are the score in an
order-preserving form, the low bits the distance of the word from the end, so that the first of equals wins.
"""

# mypy: ignore-errors
# A type checker does not understand Triton's language.

import torch
import triton
import triton.language as tl
from torch import Tensor

_LOWEST = tl.constexpr(-(1 << 63))
_LAST = tl.constexpr((1 << 31) - 1)
"""The largest 32-bit integer: above every word, and as score bits reserved for NaN."""
_ROWS = 64
"""Rows of a chunk in column-major memory: as many as one memory transaction holds."""
_FEW_ROWS = 4
_MOST_CHUNKS = 1024
"""Chunks that are reduced at a time."""


@triton.jit
def _chunks(scores, maxima, rows, words, strides, tile: tl.constexpr):
    words_block: tl.constexpr = tile[0]
    rows_block: tl.constexpr = tile[1]
    column_major: tl.constexpr = tile[2]
    chunk, chunks = tl.program_id(1), tl.num_programs(1)
    row = tl.program_id(0).to(tl.int64) * rows_block + tl.arange(0, rows_block)  # there may be 2^31 scores
    word = chunk * words_block + tl.arange(0, words_block)
    if column_major:
        where = word.to(tl.int64)[:, None] * strides[1] + row[None, :]
    else:
        where = row[None, :] * strides[0] + word[:, None]
    there = (word < words)[:, None] & (row < rows)[None, :]
    score = tl.load(scores + where, mask=there, other=float("-inf")).to(tl.float32)
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int32, bitcast=True)  # -0.0 equals 0.0
    bits = tl.where(score == score, bits ^ ((bits >> 31) & _LAST), _LAST)
    key = (bits.to(tl.int64) << 32) + (word ^ _LAST)[:, None]
    tl.store(maxima + row * chunks + chunk, tl.max(key, axis=0), mask=row < rows)


@triton.jit
def _rows(maxima, best, chunks, block: tl.constexpr):
    row, each = tl.program_id(0).to(tl.int64), tl.arange(0, block)
    key = tl.full([block], _LOWEST, tl.int64)
    for start in range(0, chunks, block):
        there = start + each < chunks
        key = tl.maximum(key, tl.load(maxima + row * chunks + start + each, mask=there, other=_LOWEST))
    tl.store(best + row, (tl.max(key, axis=0) & _LAST) ^ _LAST)


def launch(scores: Tensor) -> Tensor:
    """The index of the largest score [b] of scores [b v]."""
    rows, words = scores.shape
    scores = scores if 1 in scores.stride() else scores.contiguous()
    column_major = scores.stride(1) != 1
    words_block, rows_block, warps = plan(rows, column_major)
    chunks = triton.cdiv(words, words_block)
    maxima = torch.empty(rows, chunks, dtype=torch.long, device=scores.device)
    best = torch.empty(rows, dtype=torch.long, device=scores.device)
    strides = 0 if rows == 1 else scores.stride(0), scores.stride(1)  # the stride of a single row is arbitrary
    grid, tile = (triton.cdiv(rows, rows_block), chunks), (words_block, rows_block, column_major)
    _chunks[grid](scores, maxima, rows, words, strides, tile, num_warps=warps)
    block = min(triton.next_power_of_2(chunks), _MOST_CHUNKS)
    _rows[(rows,)](maxima, best, chunks, block, num_warps=min(max(block // 128, 1), 4))
    return best


def plan(rows: int, column_major: bool) -> tuple[int, int, int]:
    """Words and rows of a chunk, and warps; chunks are smaller for few rows, so that all processors are used."""
    if column_major:
        rows_block = min(triton.next_power_of_2(rows), _ROWS)
        return max(2048 // rows_block, 128), rows_block, 4
    return (512, 1, 4) if rows <= _FEW_ROWS else (4096, 1, 4)
