"""Right classes: accuracy, macro F1, Matthews' correlation; and whether probabilities mean what they say.

accuracy = trace(C) / n;  F1_k = 2 C_kk / (row_k + column_k), macro: their mean over classes that occur
MCC = (n trace(C) - t.p) / sqrt((n^2 - p.p)(n^2 - t.t)),  t, p the sums of C's rows and columns (Gorodkin 2004)
ECE = sum_bins n_b / n |accuracy_b - confidence_b|, 15 bins of equal width          (arXiv 1706.04599)
C_ij counts items of class i that were said to be j.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyformer.evaluation.metrics.score import Score, Scores
from anyformer.statistics.intervals import Floats, bootstrap

BINS = 15


def class_scores(
    right: NDArray[Any],
    said: NDArray[Any],
    classes: int,
    confidence: NDArray[Any] | None = None,
    unit: NDArray[Any] | None = None,
    what: str = "texts",
) -> Scores:
    """Of numbers of classes. `confidence`: the probability of what was said. `unit`: the text that each item belongs
    to, where a text has several; texts are what is resampled."""
    unit = np.arange(len(right)) if unit is None else unit
    units = int(unit.max(initial=-1)) + 1
    pairs = right.astype(np.int64) * classes + said

    def confusion(weights: Floats) -> Floats:
        counted = np.bincount(pairs, weights=weights[unit], minlength=classes * classes)
        return counted.astype(np.float64).reshape(classes, classes)

    found = {
        "accuracy": bootstrap(lambda weights: accuracy(confusion(weights)), units),
        "macro_f1": bootstrap(lambda weights: macro_f1(confusion(weights)), units),
        "matthews": bootstrap(lambda weights: matthews(confusion(weights)), units),
    }
    if confidence is not None:
        hits = (right == said).astype(np.float64)
        found["calibration_error"] = bootstrap(lambda weights: calibration(hits, confidence, weights[unit]), units)
    told = f"{classes} classes" if len(right) == units else f"{classes} classes, {len(right):,} items"
    extra = {"calibration_error": f"{BINS} bins"}
    return {name: Score.of(it, units, what, told, extra.get(name, "")) for name, it in found.items()}


def accuracy(confusion: Floats) -> float:
    return float(np.trace(confusion) / max(confusion.sum(), 1e-300))


def macro_f1(confusion: Floats) -> float:
    """Over the classes that are there or were said to be."""
    both = confusion.sum(0) + confusion.sum(1)
    there = both > 0
    return float((2 * np.diag(confusion)[there] / both[there]).mean()) if there.any() else 0.0


def matthews(confusion: Floats) -> float:
    """0 where all items have one class, or one class was said of all."""
    total, true, said = confusion.sum(), confusion.sum(1), confusion.sum(0)
    spread = (total**2 - said @ said) * (total**2 - true @ true)
    return float((total * np.trace(confusion) - true @ said) / np.sqrt(spread)) if spread > 0 else 0.0


def calibration(hits: Floats, confidence: NDArray[Any], weights: Floats) -> float:
    """How far, on average, confidence lies from the share that is right."""
    bins = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)
    gaps = np.bincount(bins, weights=weights * (hits - confidence), minlength=BINS)
    return float(np.abs(gaps).sum() / max(weights.sum(), 1e-300))
