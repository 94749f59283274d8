"""Right numbers: mean squared error, Pearson's and Spearman's correlation."""

from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from anyformer.evaluation.metrics.score import Score, Scores
from anyformer.statistics.intervals import Floats, bootstrap, mean


def number_scores(right: NDArray[Any], said: NDArray[Any]) -> Scores:
    """Of numbers against the right ones; ranks are those among all texts."""
    ranks = scipy.stats.rankdata(right), scipy.stats.rankdata(said)
    found = {
        "squared_error": mean((right - said) ** 2),
        "pearson": bootstrap(lambda weights: correlation(right, said, weights), len(right)),
        "spearman": bootstrap(lambda weights: correlation(*ranks, weights), len(right)),
    }
    return {name: Score.of(it, len(right), "texts") for name, it in found.items()}


def correlation(one: NDArray[Any], other: NDArray[Any], weights: Floats) -> float:
    """Pearson's, of weighted items; 0 where one of them does not vary."""
    x, y = (column - np.average(column, weights=weights) for column in (one, other))
    spread = float((weights @ x**2) * (weights @ y**2))
    return float(weights @ (x * y)) / spread**0.5 if spread > 0 else 0.0
