"""Right numbers: errors in the units of the data, and correlations.

squared_error = mean (y - p)^2;  absolute_error = mean |y - p|;  r2 = 1 - sum (y - p)^2 / sum (y - mean y)^2
pearson, spearman: the correlations of y with the predictions p, and of their ranks
"""

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
    """Squared and absolute error, R squared and correlations of predicted numbers, in the units of the data; the loss
    of training is that of standardised numbers."""

    names = ("squared_error", "absolute_error", "r2", "pearson", "spearman")

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
        "absolute_error": mean(np.abs(right - predicted)),
        "r2": bootstrap(lambda weights: explained(right, predicted, weights), len(right)),
        "pearson": bootstrap(lambda weights: correlation(right, predicted, weights), len(right)),
        "spearman": bootstrap(lambda weights: correlation(*ranks, weights), len(right)),
    }
    return {name: Score.of(score, len(right), "texts") for name, score in scores.items()}


def explained(right: NDArray[Any], predicted: NDArray[Any], weights: Floats) -> float:
    """R squared, of weighted items: the share of the variance that is explained; 0 if the right numbers are equal."""
    spread = float(weights @ (right - np.average(right, weights=weights)) ** 2)
    return 1.0 - float(weights @ (right - predicted) ** 2) / spread if spread > 0 else 0.0


def correlation(one: NDArray[Any], other: NDArray[Any], weights: Floats) -> float:
    """Pearson's, of weighted items; 0 where one of them does not vary."""
    x, y = (column - np.average(column, weights=weights) for column in (one, other))
    spread = float((weights @ x**2) * (weights @ y**2))
    return float(weights @ (x * y)) / spread**0.5 if spread > 0 else 0.0
