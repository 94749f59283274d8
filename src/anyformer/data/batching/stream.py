"""Streaming: all documents of a split, one after the other, read by several lanes that never lose their place.

A batch has one row for each of R lanes. Lane i begins N i / R tokens behind a place that (seed, epoch) decides, on the
N tokens bent into a ring, and each batch goes on where the last one ended: truncated backpropagation through time
(Williams and Peng 1990) and the segments of Transformer-XL (arXiv 1901.02860) read text in this way.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from anyformer.data.batching.collate import Arrays
from anyformer.data.batching.order import Integers, mix
from anyformer.data.preparation.shards import Side
from anyformer.data.tokenizers.word_starts import WordStarts


@dataclass(frozen=True, eq=False)
class StreamRows:
    """Where the rows of one batch lie on the stream. Knows no token."""

    starts: Integers
    lengths: Integers
    """Tokens of each row; lanes differ by one, so some rows of the last batch have one place that stays empty."""
    lanes: Integers

    @property
    def height(self) -> int:
        return len(self.lanes)

    def share(self, rank: int, world: int) -> "StreamRows":
        """Every `world`-th row."""
        return StreamRows(self.starts[rank::world], self.lengths[rank::world], self.lanes[rank::world])


@dataclass(frozen=True)
class StreamPlan:
    """Plans the batches of all epochs; each epoch has every token once."""

    tokens: int
    rows: int
    """Of a batch."""
    width: int
    """Columns of a batch; the last of an epoch may have fewer."""
    seed: int
    shuffle: bool = True
    """False: every epoch begins at the first token."""

    @property
    def batches(self) -> int:
        """Of an epoch."""
        return -(-self.tokens // (self.rows * self.width))

    def strip(self, epoch: int, batch: int) -> StreamRows:
        """One batch of an epoch."""
        lanes = np.arange(self.rows + 1)
        edges = lanes * self.tokens // self.rows  # where lanes begin, before the turn
        begin = edges[:-1] + batch * self.width
        turn = mix(self.seed, epoch) % self.tokens if self.shuffle else 0
        lengths = np.clip(edges[1:] - begin, 0, self.width)
        return StreamRows((begin + turn) % self.tokens, lengths, lanes[:-1])

    def strips(self, epoch: int, first: int) -> Iterator[tuple[int, StreamRows]]:
        """The batches of an epoch from one on, each with its number."""
        return ((batch, self.strip(epoch, batch)) for batch in range(first, self.batches))


@dataclass(frozen=True)
class StreamCollator:
    """Makes the arrays of a batch from a strip."""

    side: Side
    pad: int
    word_starts: WordStarts | None = None

    def widths(self, strip: StreamRows) -> int:
        """Columns, of all ranks alike."""
        return int(strip.lengths.max(initial=0))

    def arrays(self, strip: StreamRows, width: int) -> Arrays:
        """The tokens of a strip; positions count from the start of each document, however far back that is."""
        total, columns = self.side.tokens.entry.count, np.arange(width)
        places = (strip.starts[:, None] + columns) % total
        valid = columns < strip.lengths[:, None]
        inside = self._inside(places)
        first = inside == 0
        first[:, :1] = False
        tokens = np.where(valid, self.side.tokens.array[places], self.pad).astype(np.int64)
        before = self.side.tokens.array[(strip.starts - 1) % total].astype(np.int64)
        found: Arrays = {
            "tokens": tokens,
            "valid": valid,
            "segments": np.where(valid, first.cumsum(axis=1), -1),
            "positions": np.where(valid, inside, 0),
            "labels.before": np.where(self._inside(strip.starts) == 0, -1, before),
            "labels.lane": strip.lanes,
        }
        if self.word_starts is not None:
            found["labels.word_starts"] = (self.word_starts.of(tokens) | (inside == 0)) & valid
        return found

    def _inside(self, places: Integers) -> Integers:
        """Tokens between each place and the start of its document."""
        index: Integers = self.side.index.array
        return places - index[np.searchsorted(index, places, side="right") - 1]
