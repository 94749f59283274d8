"""Bootstrap confidence intervals: how a score varies over texts of the same distribution (Efron 1979).

A resample draws n of the n units with replacement. It is passed as one weight for each unit: how often it was drawn. A
statistic is a function of these weights; weights of 1 give the score itself. The interval lies between percentiles.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import scipy  # imports `scipy.stats`, which takes a second, on first use
from numpy.typing import NDArray

RESAMPLES, LEVEL = 1000, 0.95
Floats: TypeAlias = NDArray[np.float64]
Statistic: TypeAlias = Callable[[Floats], float]
"""Weights of the units (documents, for example) -> the score."""


@dataclass(frozen=True)
class Interval:
    """A score and its 95% confidence interval; the ends are None if there is only one unit."""

    value: float
    low: float | None = None
    high: float | None = None

    def through(self, rising: Callable[[float], float]) -> "Interval":
        """The interval of an increasing function of the score."""
        ends = [None if end is None else rising(end) for end in (self.low, self.high)]
        return Interval(rising(self.value), *ends)


def bootstrap(statistic: Statistic, units: int, *, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """The score over all units, with its bootstrap interval."""
    value = float(statistic(np.ones(units)))
    if units < 2 or not np.isfinite(value):
        return Interval(value)

    result = scipy.stats.bootstrap(
        (np.arange(units),),
        lambda places: statistic(np.bincount(places, minlength=units).astype(np.float64)),
        n_resamples=resamples,
        confidence_level=LEVEL,
        method="percentile",
        vectorized=False,
        rng=np.random.default_rng(seed),
    )
    low, high = result.confidence_interval
    return Interval(value, float(low), float(high))


def mean(values: Any) -> Interval:
    """The mean of one number for each unit, with its bootstrap interval."""
    numbers = np.asarray(values, dtype=np.float64)
    return bootstrap(lambda weights: float(weights @ numbers / weights.sum()), len(numbers))


def ratio(sums: Any, counts: Any) -> Interval:
    """The ratio of two sums, such as nats over tokens, for units of different sizes; 0 if a resample has no counts."""
    above, below = (np.asarray(column, dtype=np.float64) for column in (sums, counts))

    def of(weights: Floats) -> float:
        total = float(weights @ below)
        return float(weights @ above) / total if total else 0.0

    return bootstrap(of, len(above))
