"""Bootstrap confidence intervals: how a score varies over texts of the same distribution (Efron 1979).

A resample draws n of the n units with replacement. It is passed as one weight for each unit: how often it was drawn. A
statistic is a function of these weights; weights of 1 give the score itself. The interval lies between percentiles.
Resamples of few units, or of units that are all alike, do not show how a score varies: it then has no interval.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

RESAMPLES, LEVEL = 1000, 0.95
FEWEST = 10
"""Units that are resampled at least."""
TOO_FEW, ALIKE = "too few for an interval", "every resample gives the same score, so there is no interval"
Floats: TypeAlias = NDArray[np.float64]
Statistic: TypeAlias = Callable[[Floats], float]
"""Weights of the units (documents, for example) -> the score."""


@dataclass(frozen=True)
class Interval:
    """A score and its 95% confidence interval; the ends are None if the units are too few or all alike."""

    value: float
    low: float | None = None
    high: float | None = None
    method: str = f"{RESAMPLES} resamples"
    """How the ends were found, or why there are none."""
    resampled: Floats | None = field(default=None, repr=False, compare=False)
    """The score of each resample. Two scores of the same units share their resamples, so that their difference has an
    interval of its own."""

    def through(self, rising: Callable[[float], float]) -> "Interval":
        """The interval of an increasing function of the score."""
        low, high = (None if end is None else rising(end) for end in (self.low, self.high))
        resampled = None if self.resampled is None else np.array([rising(value) for value in self.resampled.tolist()])
        return replace(self, value=rising(self.value), low=low, high=high, resampled=resampled)


def bootstrap(statistic: Statistic, units: int, *, resamples: int = RESAMPLES) -> Interval:
    """The score over all units, with its bootstrap interval."""
    value = float(statistic(np.ones(units)))
    if units < FEWEST or not np.isfinite(value):
        return Interval(value, method=TOO_FEW if units < FEWEST else "not finite, without an interval")
    rng, resampled = np.random.default_rng(0), np.empty(resamples)
    for number in range(resamples):
        drawn = rng.integers(units, size=units)
        resampled[number] = statistic(np.bincount(drawn, minlength=units).astype(np.float64))
    low, high = map(float, np.percentile(resampled, [50 * (1 - LEVEL), 50 * (1 + LEVEL)]))
    if math.isclose(low, high):
        return Interval(value, method=ALIKE, resampled=resampled)
    return Interval(value, low, high, f"{resamples} resamples", resampled)


def mean(values: Any) -> Interval:
    """The mean of one number for each unit, with its bootstrap interval."""
    numbers = np.asarray(values, dtype=np.float64)
    return bootstrap(lambda weights: float(weights @ numbers / weights.sum()), len(numbers))


def share(hits: Any) -> Interval:
    """The share of units that are hits, with Wilson's interval."""
    numbers = np.asarray(hits, dtype=np.float64)
    return _wilson(mean(numbers), len(numbers))


def share_in_groups(hits: Any, counts: Any) -> Interval:
    """The share of hits among items that come in groups, such as the words of a text. Groups are resampled; if they are
    too few or all alike, the interval is Wilson's, as if each group were one item, since its items may be copies."""
    interval = ratio(hits, counts)
    return interval if interval.low is not None else _wilson(interval, int(np.count_nonzero(counts)))


def _wilson(interval: Interval, n: int) -> Interval:
    """Wilson's interval of a share of n items, which is never empty.

    (p + z²/2n ± z sqrt(p (1 - p) / n + z²/4n²)) / (1 + z²/n),   z = 1.96          (Wilson 1927)
    """
    p, z = interval.value, NormalDist().inv_cdf(0.5 + LEVEL / 2)
    centre, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low, high = max(0.0, (centre - half) / (1 + z * z / n)), min(1.0, (centre + half) / (1 + z * z / n))
    return replace(interval, low=low, high=high, method="Wilson's interval")


def difference(one: Interval, other: Interval) -> Interval:
    """One score less another of the same units, in the same order; without ends if they were not resampled alike."""
    value = one.value - other.value
    if one.resampled is None or other.resampled is None or len(one.resampled) != len(other.resampled):
        return Interval(value)
    low, high = np.percentile(one.resampled - other.resampled, [50 * (1 - LEVEL), 50 * (1 + LEVEL)]).tolist()
    return Interval(value, method=ALIKE) if math.isclose(low, high) else Interval(value, low, high)


def ratio(sums: Any, counts: Any) -> Interval:
    """The ratio of two sums, such as nats over tokens, for units of different sizes; 0 if a resample has no counts."""
    above, below = (np.asarray(column, dtype=np.float64) for column in (sums, counts))

    def of(weights: Floats) -> float:
        total = float(weights @ below)
        return float(weights @ above) / total if total else 0.0

    return bootstrap(of, len(above))


def difference_text(interval: Interval) -> str:
    """A difference with its interval, in decimals that show it: -0.160 (-0.203 to -0.116)."""
    if not math.isfinite(interval.value):
        return "unknown"
    bounds = [interval.value, *(bound for bound in (interval.low, interval.high) if bound is not None)]
    places = 3 if max(map(abs, bounds)) >= 0.01 else 6
    value, *ends = (f"{bound:+.{places}f}" for bound in bounds)
    return f"{value} ({ends[0]} to {ends[1]})" if ends else f"{value} (no interval)"
