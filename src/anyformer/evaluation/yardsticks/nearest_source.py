"""Translation memory: the target of the training pair whose source is most similar, by BM25."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anyformer.data.record import Record
from anyformer.evaluation.metrics.score import Scores
from anyformer.evaluation.metrics.translations import translation_scores
from anyformer.evaluation.yardsticks.bm25 import bm25_weights, word_counts
from anyformer.evaluation.yardsticks.yardstick import ComparedScore, Yardstick

AT_ONCE = 256
"""Queries whose scores exist at once."""


@dataclass(frozen=True, kw_only=True)
class NearestSource(Yardstick, kind="nearest_source"):
    """Answers with the target of the most similar training source."""

    title = "the nearest training pair"
    metric = "translation"
    scores = (ComparedScore("bleu", "points of BLEU"),)

    def measure(self, train: Sequence[Record], held_out: Sequence[Record]) -> Scores:
        weights, columns = bm25_weights([record.text for record in train])
        queries = word_counts([record.text for record in held_out], columns)
        parts = [queries[start : start + AT_ONCE] for start in range(0, len(held_out), AT_ONCE)]
        nearest = np.concatenate([np.asarray((part @ weights.T).argmax(axis=1)).ravel() for part in parts])
        texts = [train[place].target or "" for place in nearest.tolist()]
        return translation_scores(texts, [record.target or "" for record in held_out])
