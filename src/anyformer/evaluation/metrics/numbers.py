"""Right numbers: mean squared error, Pearson's and Spearman's correlation."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from anyformer.evaluation.metrics.metric import Job, Metric
from anyformer.evaluation.metrics.score import Score, Scores, require_items
from anyformer.inference.classifying import predict
from anyformer.statistics.intervals import Floats, bootstrap, mean


@dataclass(frozen=True, kw_only=True)
class NumberMetrics(Metric, kind="numbers"):
    """Squared error and correlations of predicted numbers."""

    names = ("squared_error", "pearson", "spearman")

    def measure(self, job: Job) -> Scores:
        right, predicted, rows = list[float](), list[float](), list[int]()
        for predictions in predict(job.predictor, job.records, labelled=True):
            labels = predictions.records.batch.labels
            numbers = labels.label if labels.number is None else labels.number
            assert numbers is not None
            right += numbers.tolist()
            predicted += predictions.scores[:, 0].tolist()
            rows += predictions.records.rows
            job.on_progress(len(right))
        require_items(right)
        order = np.argsort(rows)  # batches come in the order of lengths, differences are paired by that of the records
        return number_scores(np.array(right)[order], np.array(predicted)[order])


def number_scores(right: NDArray[Any], predicted: NDArray[Any]) -> Scores:
    """The scores of numbers against the right ones; ranks are those among all texts."""
    ranks = scipy.stats.rankdata(right), scipy.stats.rankdata(predicted)
    scores = {
        "squared_error": mean((right - predicted) ** 2),
        "pearson": bootstrap(lambda weights: correlation(right, predicted, weights), len(right)),
        "spearman": bootstrap(lambda weights: correlation(*ranks, weights), len(right)),
    }
    return {name: Score.of(score, len(right), "texts") for name, score in scores.items()}


def correlation(one: NDArray[Any], other: NDArray[Any], weights: Floats) -> float:
    """Pearson's, of weighted items; 0 where one of them does not vary."""
    x, y = (column - np.average(column, weights=weights) for column in (one, other))
    spread = float((weights @ x**2) * (weights @ y**2))
    return float(weights @ (x * y)) / spread**0.5 if spread > 0 else 0.0
