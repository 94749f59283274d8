"""Power analysis: how many seeds a study needs to find the differences that a pilot shows.

A difference of δ paired standard deviations gives T² = F(1, n - 1; λ = n δ²), the non-central F distribution. The power
against k arms is P(F > c) at the level of each arm (Šidák), which is close to that of the step-down test. The pilot
gives a range for δ by inverting the distribution of T²: the λ for which the observed T² is the median, and those for
which it is the 10% or 90% quantile. The range therefore covers the uncertainty of the mean and of the variance.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass

from numpy.typing import ArrayLike
from scipy import optimize, special

from anyformer.statistics.intervals import LEVEL
from anyformer.statistics.paired import effect_size, present

FEWEST, USUAL, MOST = 6, 8, 1000
"""Fewer than FEWEST seeds cannot reach p < 0.05 by sign flips (2 / 2^5 = 0.06); USUAL is the default of a study; MOST
stands for MOST or more."""
POWER, RANGE = 0.8, 0.8
SMALLEST, LARGEST = 1e-4, 10.0  # range of effects in which the distribution functions are accurate


@dataclass(frozen=True)
class Needed:
    """Total number of seeds for 80% power, with its 80% interval; MOST stands for MOST or more."""

    seeds: int
    low: int
    high: int

    def beyond(self, run: int) -> "Needed":
        """The same estimate, if `run` seeds were not enough: one seed more would only repeat the study."""
        low, seeds = max(self.low, run + 1), max(self.seeds, run + 2)
        return Needed(seeds, low, max(self.high, seeds))


def chance_to_find(effect: float, seeds: int, arms: int = 1) -> float:
    """The power of a study for a true difference of `effect` paired standard deviations in one of `arms`."""
    if seeds < FEWEST:
        return 0.0
    bar = special.fdtri(1, seeds - 1, LEVEL ** (1 / arms))
    return 1.0 - float(special.ncfdtr(1, seeds - 1, seeds * min(effect, LARGEST) ** 2, bar))


def seeds_for(effect: float, arms: int = 1) -> int:
    """The fewest seeds that find this difference with 80% power."""
    offset = bisect_left(range(FEWEST, MOST), POWER, key=lambda seeds: chance_to_find(effect, seeds, arms))
    return FEWEST + offset


def seeds_needed(row: ArrayLike, arms: int = 1) -> Needed | None:
    """The seeds needed, estimated from the differences of one arm of a pilot; None if they do not vary."""
    pilot, effect = present(row), effect_size(row)
    if effect is None:
        return None
    f, tail = len(pilot) * min(max(abs(effect), SMALLEST), LARGEST) ** 2, (1 - RANGE) / 2
    by_chance = float(special.fdtr(1, len(pilot) - 1, f))
    # A pilot mean near zero must not rule out every effect: scale this tail by the probability under no effect.
    shares = (0.5, tail * by_chance, 1 - tail)
    effects = [math.sqrt(_noncentrality(f, len(pilot), share) / len(pilot)) for share in shares]
    return Needed(*(seeds_for(true, arms) for true in effects))


def _noncentrality(f: float, seeds: int, share: float) -> float:
    """The λ for which P(F < f) = `share`; 0 if P(F < f) is at most `share` even for λ = 0."""

    def excess(root: float) -> float:
        return float(special.ncfdtr(1, seeds - 1, root**2, f)) - share

    if special.fdtr(1, seeds - 1, f) <= share:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
    return float(optimize.brentq(excess, 0.0, high, xtol=1e-6)) ** 2
