"""Rows: all documents of a split, one after the other, cut every `context` tokens, whatever document they belong to.

A token sees all that stands before it in its row, including other documents: GPT-3 was trained in this way (arXiv
2005.14165, appendix B). Rows have neither segments nor padding, so that attention needs no mask but the causal one.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from anyformer.data.batching.collate import Arrays
from anyformer.data.batching.packings.packing import PackingSpec, PackingTask
from anyformer.data.batching.row_plan import LoaderPosition, TokenRows, mix, permute


@dataclass(frozen=True, kw_only=True)
class Rows(PackingSpec, kind="rows"):
    """Documents end to end, cut every `context` tokens; a token sees all before it in its row. Fastest, but a row may
    begin inside a text."""

    keeps_whole = True
    one_shape = True

    def batches(self, task: PackingTask, start: LoaderPosition) -> Iterator[tuple[TokenRows, LoaderPosition]]:
        cuts = FixedRows(task.tokens, task.rows, task.context, task.seed, task.shuffle)
        for first in range(start.unit, cuts.total, cuts.rows):
            plan = cuts.plan(start.epoch, first, task.even and first > 0)  # an only batch is never filled up
            yield plan, start.at_unit(first + cuts.rows, cuts.total)

    def collate(self, task: PackingTask, plan: TokenRows) -> Arrays:
        """The token before the first of the text is its last, the end of a document, too. A row that would be empty
        behind the end of the text repeats its beginning, with weight 0: frames stay plain, and one graph is enough."""
        text, width = task.samples.sides["tokens"].tokens.array, task.context
        around = text[(plan.starts[:, None] + np.arange(-1, width)) % len(text)].astype(np.int64)
        starts, tokens = around[:, :-1] == task.words.eos, around[:, 1:]
        arrays: Arrays = {
            "tokens": tokens,
            "starts": starts,
            "continuation.before": np.where(starts[:, 0], -1, around[:, 0]),
        }
        if plan.lengths.min(initial=width) < width:
            arrays["weight"] = (np.arange(width) < plan.lengths[:, None]).astype(np.float32)
        if task.word_starts is not None:
            arrays["word_starts"] = task.word_starts.of(tokens) | starts
        return arrays


@dataclass(frozen=True)
class FixedRows:
    """Plans the rows of all epochs; each epoch has every token once."""

    tokens: int
    rows: int
    """Rows of a batch."""
    width: int
    seed: int
    shuffle: bool = True
    """False: rows in the order of the text, in every epoch."""

    @property
    def total(self) -> int:
        """Rows of an epoch. An incomplete one, at the end of the text, is the last of every epoch."""
        return -(-self.tokens // self.width)

    def plan(self, epoch: int, first: int, even: bool) -> TokenRows:
        """The batch that begins with a row of an epoch; `even`: with rows of length 0 up to the usual height."""
        last = first + self.rows
        places = np.arange(first, last if even else min(last, self.total))
        complete = self.tokens // self.width
        if self.shuffle:
            full = places < complete
            places[full] = permute(places[full], complete, mix(self.seed, epoch))
        starts = places * self.width
        return TokenRows(starts, np.clip(self.tokens - starts, 0, self.width))
