"""Rows of tokens as documents: where each begins, how a special token gets in front, and one by one as lists.

A shared row holds several documents, ends marked by the data, told apart by segments or, where they see each other,
by `Batch.starts`; any other row is one document.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core import Frame
from anyformer.data.batching.batch import Batch
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.objectives.transformations import InputRow, lay


def live(batch: Batch) -> Tensor:
    """[b t], true where a token of a batch from the data exists and counts."""
    return batch.counted


def begins(batch: Batch) -> Tensor:
    """[b t], true at the first token of each document."""
    return batch.document_starts


def shifted(batch: Batch, first: int) -> Tensor:
    """[b t]: every document one place to the right, `first` in front of it; its last token drops out."""
    return batch.tokens.roll(1, dims=1).masked_fill(begins(batch), first).where(live(batch), batch.tokens)


def continued(batch: Batch, first: int) -> Tensor:
    """[b t]: as `shifted`, but a row that begins inside a document has the token before it in front."""
    tokens = shifted(batch, first)
    if batch.continuation is not None:
        before = batch.continuation.before
        tokens[:, 0] = before.where((before >= 0) & live(batch)[:, 0], tokens[:, 0])
    return tokens


def closed(batch: Batch, last: int, goes_on: Tensor | None = None) -> Batch:
    """Every document ends in `last`: a row that is one document gets it where it has none, but not if it goes on."""
    if batch.shared:
        return batch
    there = live(batch)
    end = _end(there)
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
    """<cls> in front of each document, <sep> behind it. In shared rows there is no room for more: it takes the place
    of the closing <eos>, everything before it moving by one."""
    if batch.shared:
        return replace(batch, tokens=shifted(batch, words.cls))
    whole = closed(batch, words.sep)
    there = F.pad(live(whole), (0, 1))
    wide = _wider(whole, there | there.roll(1, dims=1))
    return replace(wide, tokens=shifted(wide, words.cls))


def documents(batch: Batch, words: Vocabulary) -> list[list[int]]:
    """The ids of each document, without padding and without what marks its ends."""
    number, there = begins(batch).flatten().cumsum(0) - 1, text(batch, words).flatten()
    count = int(number[-1]) + 1 if len(number) else 0
    sizes = torch.bincount(number[there], minlength=count).tolist()
    return [piece.tolist() for piece in batch.tokens.flatten()[there].split(sizes) if len(piece)]


def text(batch: Batch, words: Vocabulary) -> Tensor:
    """[b t], true where a token is neither padding nor what marks an end."""
    ends = torch.tensor((words.pad, words.bos, words.eos, words.sep, words.cls))
    return live(batch) & ~torch.isin(batch.tokens, ends)


def relaid(rows: Sequence[InputRow], words: Vocabulary) -> Batch:
    """Rows of any lengths, filled up on the right; there may be none, in a rank's share of a last batch."""
    if rows:
        return lay(rows, words)
    nothing = torch.zeros(0, 1, dtype=torch.long)
    return Batch(tokens=nothing, frame=Frame(valid=nothing.bool(), types=nothing))


def _end(there: Tensor) -> Tensor:
    """[b]: the place behind the last token."""
    places = torch.arange(1, there.shape[1] + 1)
    return (places * there).amax(1)


def _wider(batch: Batch, valid: Tensor) -> Batch:
    """The rows with one more column, and without types and order, which are unknown there."""
    return replace(batch, tokens=F.pad(batch.tokens, (0, 1)), frame=Frame(valid=valid))
