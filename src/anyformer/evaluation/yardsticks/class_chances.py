"""Scores of class probabilities by the same code that scores a model."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyformer.data.record import Record
from anyformer.evaluation.metrics.classes import class_scores
from anyformer.evaluation.metrics.score import Score, Scores
from anyformer.statistics.intervals import mean

FLOOR = 1e-6
"""Probability of a class that the training texts do not have."""
SMALLEST = float(np.finfo(np.float64).tiny)
"""Lower bound of the probability of any other class, which keeps its logarithm finite. A larger bound would cap the
loss of a confident mistake, which the loss of a model does not."""


def scores_of(chances: NDArray[Any], names: Sequence[str], records: Sequence[Record]) -> Scores:
    """The scores of probabilities [n classes] for the classes `names`, against the labels of n records."""
    known = {name: place for place, name in enumerate(names)}
    for record in records:
        known.setdefault(str(record.label), len(known))
    right = np.array([known[str(record.label)] for record in records])
    padded = np.pad(chances, ((0, 0), (0, len(known) - len(names))), constant_values=FLOOR)
    nats = -np.log(np.maximum(padded[np.arange(len(right)), right], SMALLEST))
    loss = Score.of(mean(nats), len(nats), "texts", "nats per text")
    return {"loss": loss, **class_scores(right, padded.argmax(1), len(known), padded.max(1))}
