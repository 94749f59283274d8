"""Rows: all documents of a split, one after the other, cut every `context` tokens, whatever document they belong to.

A token sees all that stands before it in its row, including other documents: GPT-3 was trained in this way (arXiv
2005.14165, appendix B). Rows have neither segments nor padding, so that attention needs no mask but the causal one.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from anyformer.data.batching.packings.packing import Arrays, PackingSpec, PackingTask
from anyformer.data.batching.row_plan import CUTS, Integers, LoaderPosition, TokenRows, mix, permute


@dataclass(frozen=True, kw_only=True)
class Rows(PackingSpec, kind="rows"):
    """Documents end to end, cut every `context` tokens; a token sees all before it in its row. Fastest, but a row may
    begin inside a text."""

    keeps_whole = True
    one_shape = True

    def batches(self, task: PackingTask, start: LoaderPosition) -> Iterator[tuple[TokenRows, LoaderPosition]]:
        total = -(-task.tokens // task.context)
        key = mix(task.seed, start.epoch) if task.shuffle else None
        for first in range(start.unit, total, task.rows):
            end = first + task.rows
            last = end if task.even and first > 0 else min(end, total)  # an only batch is never filled up
            yield cut_rows(np.arange(first, last), task.tokens, task.context, key), start.at_unit(end, total)

    def collate(self, task: PackingTask, plan: TokenRows) -> Arrays:
        """A row that would be empty behind the end of the text repeats its beginning with weight 0, so that no mask is
        needed. The token before the first one is the last of the text, which ends a document, too."""
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


def cut_rows(places: Integers, tokens: int, width: int, key: int | None) -> TokenRows:
    """Some rows of an epoch, which has every token once. The key decides their order and the place of the text at which
    the first one begins; a row goes on from the end of the text to its beginning. None: in the order of the text. The
    incomplete row is always the last one, and rows after it have length 0."""
    full, offset = places < tokens // width, 0
    if key is not None:
        places = places.copy()
        places[full] = permute(places[full], tokens // width, key)
        offset = mix(key, CUTS) % tokens if tokens > width else 0
    starts = places * width
    return TokenRows((starts + offset) % tokens, np.clip(tokens - starts, 0, width))
