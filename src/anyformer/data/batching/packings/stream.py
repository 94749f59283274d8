"""Stream: all documents of a split, one after the other, read by several rows that go on from batch to batch.

A batch has R rows. Row i begins N i / R tokens behind an offset that (seed, epoch) decides, modulo the N tokens, and
each batch goes on where the last one ended: truncated backpropagation through time (Williams and Peng 1990) and the
segments of Transformer-XL (arXiv 1901.02860) read text in this way.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from anyformer.data.batching.packings.packing import Arrays, PackingSpec, PackingTask
from anyformer.data.batching.row_plan import Integers, LoaderPosition, Side, TokenRows, mix


@dataclass(frozen=True, kw_only=True)
class Stream(PackingSpec, kind="stream"):
    """Documents end to end; row i of a batch goes on in row i of the next one."""

    keeps_whole = True
    one_shape = True
    marks_documents = True
    continues = True

    def batches(self, task: PackingTask, start: LoaderPosition) -> Iterator[tuple[TokenRows, LoaderPosition]]:
        batches = -(-task.tokens // (task.rows * task.context))
        offset = mix(task.seed, start.epoch) % task.tokens if task.shuffle else 0
        for batch in range(start.unit, batches):
            plan = cut_stream(task.tokens, task.rows, task.context, batch, offset)
            yield plan, start.at_unit(batch + 1, batches)

    def collate(self, task: PackingTask, plan: TokenRows) -> Arrays:
        """Positions count from the start of each document, however far back that is."""
        side = task.samples.sides["tokens"]
        total, columns = task.tokens, np.arange(int(plan.lengths.max(initial=0)))
        places = (plan.starts[:, None] + columns) % total
        valid = columns < plan.lengths[:, None]
        inside = _inside(side, places)
        first = inside == 0
        first[:, :1] = False
        tokens = np.where(valid, side.tokens.array[places], task.words.pad).astype(np.int64)
        before = side.tokens.array[(plan.starts - 1) % total].astype(np.int64)
        arrays: Arrays = {
            "tokens": tokens,
            "valid": valid,
            "segments": np.where(valid, first.cumsum(axis=1), -1),
            "positions": np.where(valid, inside, 0),
            "continuation.before": np.where(_inside(side, plan.starts) == 0, -1, before),
            "continuation.row": np.arange(len(plan.starts)),
        }
        if task.word_starts is not None:
            arrays["word_starts"] = (task.word_starts.of(tokens) | (inside == 0)) & valid
        return arrays


def cut_stream(tokens: int, rows: int, width: int, batch: int, offset: int = 0) -> TokenRows:
    """The rows of one batch of an epoch, which has every token once, from the token `offset` on. Rows of the stream
    differ in length by one token, so the last batch may have a column that some of them leave empty."""
    edges = np.arange(rows + 1) * tokens // rows  # where rows of the stream begin, without the offset
    begin = edges[:-1] + batch * width
    return TokenRows((begin + offset) % tokens, np.clip(edges[1:] - begin, 0, width))


def _inside(side: Side, places: Integers) -> Integers:
    """Tokens between each place and the start of its document."""
    index: Integers = side.index.array
    return places - index[np.searchsorted(index, places, side="right") - 1]
