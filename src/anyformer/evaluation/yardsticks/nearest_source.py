"""Translation memory: the target of the training pair whose source is most similar, by TF-IDF of character grams."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from anyformer.data.record import Record
from anyformer.evaluation.metrics.score import Scores
from anyformer.evaluation.metrics.translations import translation_scores
from anyformer.evaluation.yardsticks.bag_of_words import tf_idf
from anyformer.evaluation.yardsticks.yardstick import ComparedScore, Yardstick

AT_ONCE = 256


@dataclass(frozen=True, kw_only=True)
class NearestSource(Yardstick, kind="nearest_source"):
    """Answers with the target of the most similar training source."""

    title: ClassVar[str] = "the nearest training pair"
    metric: ClassVar[str] = "translation"
    scores: ClassVar[tuple[ComparedScore, ...]] = (ComparedScore("bleu", "points of BLEU"),)
    needs: ClassVar[str | None] = "sklearn"

    def measure(self, train: Sequence[Record], held_out: Sequence[Record]) -> Scores:
        sources, queries = ([record.text for record in side] for side in (train, held_out))
        known, rows = tf_idf(sources, queries, analyzer="char_wb", ngram_range=(3, 5), token_pattern=None)
        nearest = np.concatenate(
            [
                np.asarray((rows[start : start + AT_ONCE] @ known.T).argmax(axis=1)).ravel()
                for start in range(0, len(queries), AT_ONCE)
            ]
        )
        texts = [train[place].target or "" for place in nearest.tolist()]
        return translation_scores(texts, [record.target or "" for record in held_out])
