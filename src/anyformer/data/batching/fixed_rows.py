"""Rows: all documents of a split, one after the other, cut every so many tokens, whatever document they belong to.

A token sees all that stands before it in its row, of other documents too: GPT-3 was trained in this way (arXiv
2005.14165, appendix B). Rows have neither segments nor gaps, so attention has nothing to ask but what came first.
"""

from dataclasses import dataclass

import numpy as np

from anyformer.data.batching.collate import Arrays
from anyformer.data.batching.order import mix, permute
from anyformer.data.batching.stream import StreamRows
from anyformer.data.preparation.shards import NumberFile
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.data.tokenizers.word_starts import WordStarts


@dataclass(frozen=True)
class FixedRows:
    """Plans the rows of all epochs; each epoch has every token once."""

    tokens: int
    rows: int
    """Of a batch."""
    width: int
    seed: int
    shuffle: bool = True
    """False: rows in the order of the text, in every epoch."""

    @property
    def total(self) -> int:
        """Rows of an epoch. The rest of the text that fills none is the last of every epoch."""
        return -(-self.tokens // self.width)

    def strip(self, epoch: int, first: int, even: bool) -> StreamRows:
        """A batch that begins with a row of an epoch; an even one may have rows below of which nothing counts."""
        last = first + self.rows
        places = np.arange(first, last if even else min(last, self.total))
        whole = self.tokens // self.width
        if self.shuffle:
            full = places < whole
            places[full] = permute(places[full], whole, mix(self.seed, epoch))
        starts = places * self.width
        return StreamRows(starts, np.clip(self.tokens - starts, 0, self.width), np.arange(len(places)))


@dataclass(frozen=True)
class RowCollator:
    """Makes the arrays of a batch from a strip."""

    tokens: NumberFile
    words: Vocabulary
    width: int
    word_starts: WordStarts | None = None

    def widths(self, strip: StreamRows) -> int:
        """Tokens that count in the shortest row: if one has others, the shares of all ranks say which count."""
        return int(strip.lengths.min(initial=self.width))

    def arrays(self, strip: StreamRows, shortest: int) -> Arrays:
        """The tokens of a strip. The text is bent into a ring: before its first token is the end of a document, too,
        and where a row would be empty behind its last one, its beginning, which does not count. So every batch is
        as plain as any other, and a compiler has one graph for all."""
        text, columns = self.tokens.array, np.arange(self.width)
        around = text[(strip.starts[:, None] + np.arange(-1, self.width)) % len(text)].astype(np.int64)
        valid = columns < strip.lengths[:, None]
        begins, tokens = around[:, :-1] == self.words.eos, around[:, 1:]
        found: Arrays = {
            "tokens": tokens,
            "labels.begins": begins,
            "labels.before": np.where(begins[:, 0], -1, around[:, 0]),
        }
        if shortest < self.width:
            found["labels.live"] = valid
        if self.word_starts is not None:
            found["labels.word_starts"] = self.word_starts.of(tokens) | begins
        return found
