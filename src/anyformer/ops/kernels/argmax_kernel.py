"""The kernels of `likeliest`: one finds the best word of each chunk of words, one the best of these for each row.

A word and its score are one integer, so that a maximum is all there is to find: above, the bits of the score in an
order in which they are numbers, and below, how far the word is from the end, so that the first of several wins.
"""

# mypy: ignore-errors
# Triton's language is no Python that a type checker could follow.

import torch
import triton
import triton.language as tl
from torch import Tensor

_LOWEST = tl.constexpr(-(1 << 63))
_LAST = tl.constexpr((1 << 31) - 1)
"""The largest of 32 bits: no word has a larger number, and no score but what is not a number has these bits."""
_ROWS = 64
"""Of a chunk that lies word by word: as many as one line of memory holds."""
_FEW_ROWS = 4
_MOST_CHUNKS = 1024
"""That are looked at at a time."""


@triton.jit
def _chunks(scores, found, rows, words, strides, tile: tl.constexpr):
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
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int32, bitcast=True)  # both zeros are the same
    bits = tl.where(score == score, bits ^ ((bits >> 31) & _LAST), _LAST)
    key = (bits.to(tl.int64) << 32) + (word ^ _LAST)[:, None]
    tl.store(found + row * chunks + chunk, tl.max(key, axis=0), mask=row < rows)


@triton.jit
def _rows(found, best, chunks, block: tl.constexpr):
    row, each = tl.program_id(0).to(tl.int64), tl.arange(0, block)
    key = tl.full([block], _LOWEST, tl.int64)
    for start in range(0, chunks, block):
        there = start + each < chunks
        key = tl.maximum(key, tl.load(found + row * chunks + start + each, mask=there, other=_LOWEST))
    tl.store(best + row, (tl.max(key, axis=0) & _LAST) ^ _LAST)


def launch(scores: Tensor) -> Tensor:
    """The likeliest word [b] of scores [b v]."""
    rows, words = scores.shape
    scores = scores if 1 in scores.stride() else scores.contiguous()
    column_major = scores.stride(1) != 1
    words_block, rows_block, warps = plan(rows, column_major)
    chunks = triton.cdiv(words, words_block)
    found = torch.empty(rows, chunks, dtype=torch.long, device=scores.device)
    best = torch.empty(rows, dtype=torch.long, device=scores.device)
    strides = 0 if rows == 1 else scores.stride(0), scores.stride(1)  # a single row begins where all do
    grid, tile = (triton.cdiv(rows, rows_block), chunks), (words_block, rows_block, column_major)
    _chunks[grid](scores, found, rows, words, strides, tile, num_warps=warps)
    block = min(triton.next_power_of_2(chunks), _MOST_CHUNKS)
    _rows[(rows,)](found, best, chunks, block, num_warps=min(max(block // 128, 1), 4))
    return best


def plan(rows: int, column_major: bool) -> tuple[int, int, int]:
    """Words and rows of a chunk, and warps: the fewer rows there are, the smaller, so that each processor has some."""
    if column_major:
        rows_block = min(triton.next_power_of_2(rows), _ROWS)
        return max(2048 // rows_block, 128), rows_block, 4
    return (512, 1, 4) if rows <= _FEW_ROWS else (4096, 1, 4)
