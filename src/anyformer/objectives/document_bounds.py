"""The documents in rows of tokens: special tokens at their ends, and their ids as lists.

A shared row holds several documents, whose ends the data have marked: with segments or, where documents see each other,
with `Batch.starts`. Any other row is one document.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core import Frame
from anyformer.data.batching.batch import Batch
from anyformer.data.tokenizers.vocabulary import Vocabulary


def shifted(batch: Batch, first: int) -> Tensor:
    """Tokens [b t] with every document shifted right by one, `first` in front of it; its last token drops out."""
    return batch.tokens.roll(1, dims=1).masked_fill(batch.document_starts, first).where(batch.counted, batch.tokens)


def continued(batch: Batch, first: int) -> Tensor:
    """[b t]: as `shifted`, but a row that begins inside a document has the token before it in front."""
    tokens = shifted(batch, first)
    if batch.continuation is not None:
        before = batch.continuation.before
        tokens[:, 0] = before.where((before >= 0) & batch.counted[:, 0], tokens[:, 0])
    return tokens


def closed(batch: Batch, last: int, goes_on: Tensor | None = None) -> Batch:
    """The batch with `last` behind each document that does not end in it; rows with `goes_on` are left open."""
    if batch.shared:
        return batch
    there = batch.counted
    end = (torch.arange(1, there.shape[1] + 1) * there).amax(1)  # [b], the position behind the last token
    rows = torch.arange(len(end))
    open_ = (batch.tokens[rows, (end - 1).clamp(min=0)] != last) & there.any(1)
    open_ = open_ if goes_on is None else open_ & ~goes_on
    if not open_.any():
        return batch
    valid = F.pad(there, (0, 1))
    valid[rows[open_], end[open_]] = True
    wide = _wider(batch, valid)
    wide.tokens[rows[open_], end[open_]] = last
    return wide


def framed(batch: Batch, words: Vocabulary) -> Batch:
    """The batch with <cls> in front of each document and <sep> behind it. Shared rows have no room for both: there the
    document moves right by one, <cls> comes in front and the closing <eos> drops out."""
    if batch.shared:
        return replace(batch, tokens=shifted(batch, words.cls))
    ended = closed(batch, words.sep)
    there = F.pad(ended.counted, (0, 1))
    wide = _wider(ended, there | there.roll(1, dims=1))
    return replace(wide, tokens=shifted(wide, words.cls))


def framed_row(ids: Sequence[int], words: Vocabulary, *, packed: bool) -> list[int]:
    """One text as `framed` lays it out: without <sep> if rows are shared."""
    return [words.cls, *ids] if packed else [words.cls, *ids, words.sep]


def documents(batch: Batch, words: Vocabulary) -> list[list[int]]:
    """The ids of each document, without padding and special tokens at its ends."""
    index, there = batch.document_starts.flatten().cumsum(0) - 1, text(batch, words).flatten()
    sizes = torch.bincount(index[there]).tolist()
    return [piece.tolist() for piece in batch.tokens.flatten()[there].split(sizes) if len(piece)]


def text(batch: Batch, words: Vocabulary) -> Tensor:
    """True where a token is neither padding nor a special token that marks an end [b t]."""
    ends = torch.tensor((words.pad, words.bos, words.eos, words.sep, words.cls))
    return batch.counted & ~torch.isin(batch.tokens, ends)


def _wider(batch: Batch, valid: Tensor) -> Batch:
    """The rows with one more column, and without types and order, which are unknown there."""
    return replace(batch, tokens=F.pad(batch.tokens, (0, 1)), frame=Frame(valid=valid))
