"""Right classes: accuracy, macro F1, Matthews' correlation; and the calibration of probabilities.

accuracy = trace(C) / n;  F1_k = 2 C_kk / (row_k + column_k), macro: their mean over classes that occur
MCC = (n trace(C) - t.p) / sqrt((n^2 - p.p)(n^2 - t.t)),  t, p the sums of C's rows and columns (Gorodkin 2004)
ECE = sum_bins n_b / n |accuracy_b - confidence_b|, 15 bins of equal width          (arXiv 1706.04599)
C_ij counts items of class i that were predicted as j.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from anyformer.core.readable_numbers import counted
from anyformer.data.batching.batch import RowLabels
from anyformer.evaluation.metrics.metric import Job, Metric
from anyformer.evaluation.metrics.score import Score, Scores, require_items
from anyformer.inference.classifying import predict
from anyformer.statistics.intervals import Floats, bootstrap, ratio, share, share_in_groups

BINS = 15
NAMES = ("loss", "accuracy", "macro_f1", "matthews", "calibration_error")


@dataclass(frozen=True, kw_only=True)
class ClassMetrics(Metric, kind="classes"):
    """Scores of one class for each text."""

    names = NAMES

    def measure(self, job: Job) -> Scores:
        classes = job.predictor.contents.choices or len(job.predictor.contents.classes)
        return _measure(job, classes, "text", lambda labels: labels.label)


@dataclass(frozen=True, kw_only=True)
class TagMetrics(Metric, kind="tags"):
    """Scores of one class for each word; texts are resampled, since the words of a text are not independent."""

    names = NAMES

    def measure(self, job: Job) -> Scores:
        return _measure(job, len(job.predictor.contents.tags), "word", lambda labels: labels.tags)


def _measure(job: Job, classes: int, item: str, classes_of: Callable[[RowLabels], Tensor | None]) -> Scores:
    """The scores of all records; `classes_of` gives the class of each text [b] or word [b t], -1 for none."""
    columns: list[list[float]] = [[], [], [], [], []]
    texts = 0
    for predictions in predict(job.predictor, job.records, labelled=True):
        labels = classes_of(predictions.records.batch.labels)
        assert labels is not None
        labels = labels.view(len(labels), -1)  # [b n]
        there = labels >= 0
        scores, right = predictions.scores.view(*labels.shape, -1)[there], labels[there]
        chances, nats = scores.softmax(-1), F.cross_entropy(scores, right, reduction="none")
        text = torch.tensor(predictions.records.rows)[:, None].expand_as(labels)[there]
        for column, value in zip(columns, (right, chances.argmax(-1), chances.amax(-1), nats, text), strict=True):
            column += value.tolist()
        texts += len(labels)
        job.on_progress(texts)
    require_items(columns[0])
    # Batches come in the order of lengths. Differences to other scores are paired by the order of the records.
    order = np.argsort(columns[4], kind="stable")
    right_ids, predicted, confidence, losses, records = (np.array(column)[order] for column in columns)
    unit = np.unique(records, return_inverse=True)[1]  # a record without text has no row
    sums = np.bincount(unit, weights=losses)
    loss = Score.of(ratio(sums, np.bincount(unit)), len(sums), "texts", f"nats per {item}")
    return {"loss": loss, **class_scores(right_ids, predicted, classes, confidence, unit)}


def class_scores(
    right: NDArray[Any],
    predicted: NDArray[Any],
    classes: int,
    confidence: NDArray[Any] | None = None,
    unit: NDArray[Any] | None = None,
) -> Scores:
    """The scores of class ids. `confidence`: the probability of the predicted class. `unit`: the text that each item
    belongs to, if a text has several; texts are resampled."""
    unit = np.arange(len(right)) if unit is None else unit
    units = int(unit.max(initial=-1)) + 1
    pairs = right.astype(np.int64) * classes + predicted

    def confusion(weights: Floats) -> Floats:
        counted = np.bincount(pairs, weights=weights[unit], minlength=classes * classes)
        return counted.astype(np.float64).reshape(classes, classes)

    hits, alone = (right == predicted).astype(np.float64), len(right) == units
    accuracy = share(hits) if alone else share_in_groups(np.bincount(unit, weights=hits), np.bincount(unit))
    scores = {
        "accuracy": accuracy,
        "macro_f1": bootstrap(lambda weights: macro_f1(confusion(weights)), units),
        "matthews": bootstrap(lambda weights: matthews(confusion(weights)), units),
    }
    if confidence is not None:
        scores["calibration_error"] = bootstrap(lambda weights: calibration(hits, confidence, weights[unit]), units)
    items = counted(classes, "classes") + ("" if alone else f", {counted(len(right), 'items')}")
    extra = {"calibration_error": f"{BINS} bins"}
    return {name: Score.of(score, units, "texts", items, extra.get(name, "")) for name, score in scores.items()}


def macro_f1(confusion: Floats) -> float:
    """The mean of F1 over the classes that occur or were predicted."""
    both = confusion.sum(0) + confusion.sum(1)
    there = both > 0
    return float((2 * np.diag(confusion)[there] / both[there]).mean()) if there.any() else 0.0


def matthews(confusion: Floats) -> float:
    """Matthews' correlation; 0 if all items have one class, or one class was predicted for all."""
    total, true, predicted = confusion.sum(), confusion.sum(1), confusion.sum(0)
    spread = (total**2 - predicted @ predicted) * (total**2 - true @ true)
    return float((total * np.trace(confusion) - true @ predicted) / np.sqrt(spread)) if spread > 0 else 0.0


def calibration(hits: Floats, confidence: NDArray[Any], weights: Floats) -> float:
    """The mean distance between confidence and the share that is right."""
    bins = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)
    gaps = np.bincount(bins, weights=weights * (hits - confidence), minlength=BINS)
    return float(np.abs(gaps).sum() / max(weights.sum(), 1e-300))
