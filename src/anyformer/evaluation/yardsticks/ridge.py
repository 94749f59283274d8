"""Ridge regression on TF-IDF: numbers from words, min |X w - y|^2 + a |w|^2, with `a` chosen by cross-validation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anyformer.data.record import Record
from anyformer.evaluation.metrics.numbers import number_scores
from anyformer.evaluation.metrics.score import Scores
from anyformer.evaluation.yardsticks.bag_of_words import tf_idf
from anyformer.evaluation.yardsticks.yardstick import ComparedScore, Yardstick

PENALTIES = (0.1, 1.0, 10.0)


@dataclass(frozen=True, kw_only=True)
class RidgeRegression(Yardstick, kind="ridge"):
    """Ridge regression on TF-IDF of words and pairs of words."""

    title = "ridge regression on a bag of words"
    metric = "numbers"
    scores = (ComparedScore("squared_error", unit="", lower_is_better=True),)
    needs = "sklearn"

    def measure(self, train: Sequence[Record], held_out: Sequence[Record]) -> Scores:
        from sklearn.linear_model import Ridge
        from sklearn.model_selection import cross_val_score

        numbers, right = (np.array([float(str(record.label)) for record in side]) for side in (train, held_out))
        rows, held_out_rows = tf_idf(train, held_out)
        best = PENALTIES[1]
        if (folds := min(5, len(numbers))) > 1:
            how: Any = {"cv": folds, "scoring": "neg_mean_squared_error"}
            best = max(PENALTIES, key=lambda one: cross_val_score(Ridge(alpha=one), rows, numbers, **how).mean())
        return number_scores(right, Ridge(alpha=best).fit(rows, numbers).predict(held_out_rows))
