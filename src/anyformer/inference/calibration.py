"""Temperature scaling: one number that makes a classifier as sure as it is right          (arXiv 1706.04599)

p = softmax(scores / T) ,  T = argmin over T of the mean of -log p_label on validation texts
The best class stays the same. The loss is convex in 1 / T, whose derivative is the mean of E_p[score] - score_label.
"""

import math
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from anyformer.data.record import Record
from anyformer.disk import read_object
from anyformer.inference.classifying import predict, scores_classes
from anyformer.objectives.objective import Predictor

FEWEST, MOST = 50, 2000
"""Texts that are needed to calibrate, and texts that are enough."""
FARTHEST = 4.0
"""The largest temperature; the smallest is its inverse. Scores that are never wrong would be divided by 0."""
_HALVINGS = 40


class Calibration(NamedTuple):
    """A temperature, and the number of texts that it was found with."""

    temperature: float
    texts: int

    @property
    def sentence(self) -> str:
        return f"calibrated on {self.texts:,} validation texts: temperature {self.temperature:.2f}"


def stored_temperature(file: Path, step: int | None) -> float:
    """The temperature in a file, if it was found with the checkpoint of this step; 1 otherwise."""
    with suppress(OSError, ValueError, KeyError):
        facts = read_object(file)
        return float(facts["temperature"]) if facts["step"] == step else 1.0
    return 1.0


def calibrated(predictor: Predictor, records: Iterable[Record]) -> Calibration | None:
    """The temperature of a classifier; None if the model gives no classes, or several heads do, or there are too few
    texts."""
    classifiers = [view for view in predictor.head_views if scores_classes(view)]
    if len(classifiers) != 1:
        return None
    scores, labels = list[Tensor](), list[Tensor]()
    for predictions in predict(classifiers[0], islice(records, MOST), labelled=True):
        label = predictions.records.batch.labels.label
        assert label is not None
        scores.append(predictions.scores)
        labels.append(label)
    texts = sum(map(len, labels))
    return Calibration(best_temperature(torch.cat(scores), torch.cat(labels)), texts) if texts >= FEWEST else None


def best_temperature(scores: Float[Tensor, "n c"], labels: Int[Tensor, " n"]) -> float:
    """The temperature with the lowest loss, by bisection, between 1 / `FARTHEST` and `FARTHEST`."""
    scores = scores.double()
    right = scores.gather(1, labels[:, None])[:, 0]  # [n]
    low, high = -math.log(FARTHEST), math.log(FARTHEST)  # of log(1 / T)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        expected = (scores * (scores * math.exp(middle)).softmax(-1)).nansum(-1)  # a class that cannot be has -inf
        low, high = (middle, high) if (expected - right).mean() < 0 else (low, middle)
    return math.exp(-low)
