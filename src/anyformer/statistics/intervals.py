"""Intervals by the bootstrap: what a score would have been on other texts of the same kind (Efron 1979).

A resample draws n of the n units with replacement, so it is a weight for each unit: how often it was drawn. A statistic
is a function of those weights; with weights of 1 it is the score itself. The interval lies between percentiles.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import scipy  # which loads `stats`, a second of work, when it is first asked for
from numpy.typing import NDArray

RESAMPLES, LEVEL = 1000, 0.95
Floats: TypeAlias = NDArray[np.float64]
Statistic: TypeAlias = Callable[[Floats], float]
"""Weights of the units, such as documents -> the score."""


@dataclass(frozen=True)
class Interval:
    """A score, and where it would lie for 95 of 100 samples; no interval where one unit is all there is."""

    value: float
    low: float | None = None
    high: float | None = None

    def through(self, rising: Callable[[float], float]) -> "Interval":
        """The same of a rising function of the score."""
        ends = [None if end is None else rising(end) for end in (self.low, self.high)]
        return Interval(rising(self.value), *ends)


def bootstrap(statistic: Statistic, units: int, *, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """The score of all units, with its interval."""
    value = float(statistic(np.ones(units)))
    if units < 2 or not np.isfinite(value):
        return Interval(value)

    def drawn(places: NDArray[Any]) -> float:
        return statistic(np.bincount(places, minlength=units).astype(np.float64))

    found = scipy.stats.bootstrap(
        (np.arange(units),),
        drawn,
        n_resamples=resamples,
        confidence_level=LEVEL,
        method="percentile",
        vectorized=False,
        rng=np.random.default_rng(seed),
    )
    low, high = found.confidence_interval
    return Interval(value, float(low), float(high))


def mean(values: Any) -> Interval:
    """Of one number for each unit."""
    numbers = np.asarray(values, dtype=np.float64)
    return bootstrap(lambda weights: float(weights @ numbers / weights.sum()), len(numbers))


def ratio(sums: Any, counts: Any) -> Interval:
    """sum / sum, such as nats over tokens, where units differ in size; a resample that counts nothing is left at 0."""
    above, below = (np.asarray(column, dtype=np.float64) for column in (sums, counts))

    def of(weights: Floats) -> float:
        total = float(weights @ below)
        return float(weights @ above) / total if total else 0.0

    return bootstrap(of, len(above))
