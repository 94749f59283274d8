"""How many seeds a verdict would need: from a pilot's differences to the size of a study that finds them.

A difference of δ paired standard deviations gives T² = F(1, n - 1; λ = n δ²), the non-central F distribution. The power
against k arms is P(F > c) at the level of each arm (Šidák), which is close to that of the step-down test. The pilot
says how large δ may be, by inverting the distribution of its own T²: the λ for which the T² seen is the median, and
those for which it is among the smallest or largest tenth. So the range allows for chance in the mean and in the spread.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass

from numpy.typing import ArrayLike
from scipy import optimize, special

from anyformer.statistics.intervals import LEVEL
from anyformer.statistics.paired import effect_size, present

FEWEST, MOST = 6, 1000
"""Fewer cannot reach p < 0.05 by sign flips (2 / 2^5 = 0.06); as many as MOST stand for that many or more."""
POWER, RANGE = 0.8, 0.8
SMALLEST, LARGEST = 1e-4, 10.0  # effects that no study sees, and that all do: beyond, the numbers are not exact


@dataclass(frozen=True)
class Needed:
    """Seeds in all for a verdict in four studies of five, and where that number lies at 80%; MOST means or more."""

    seeds: int
    low: int
    high: int


def chance_to_find(effect: float, seeds: int, arms: int = 1, level: float = LEVEL) -> float:
    """The power of a study for a true difference of `effect` paired standard deviations in one of `arms`."""
    if seeds < FEWEST:
        return 0.0
    bar = special.fdtri(1, seeds - 1, level ** (1 / arms))
    return 1.0 - float(special.ncfdtr(1, seeds - 1, seeds * min(effect, LARGEST) ** 2, bar))


def seeds_for(effect: float, arms: int = 1, level: float = LEVEL) -> int:
    """The fewest seeds that find this difference with 80% power."""
    found = bisect_left(range(FEWEST, MOST), POWER, key=lambda seeds: chance_to_find(effect, seeds, arms, level))
    return FEWEST + found


def seeds_needed(row: ArrayLike, arms: int = 1, level: float = LEVEL) -> Needed | None:
    """What the differences of one arm of a pilot say; None where they have no spread to judge by."""
    pilot, effect = present(row), effect_size(row)
    if effect is None:
        return None
    f, tail = len(pilot) * min(max(abs(effect), SMALLEST), LARGEST) ** 2, (1 - RANGE) / 2
    by_chance = float(special.fdtr(1, len(pilot) - 1, f))
    # a mean that happens to be near zero must not rule out every difference, so this tail is a share of chance's own
    shares = (0.5, tail * by_chance, 1 - tail)
    effects = [math.sqrt(_noncentrality(f, len(pilot), share) / len(pilot)) for share in shares]
    return Needed(*(seeds_for(true, arms, level) for true in effects))


def _noncentrality(f: float, seeds: int, share: float) -> float:
    """The λ under which F falls below `f` with this probability; 0 where it does so more rarely without any effect."""

    def excess(root: float) -> float:
        return float(special.ncfdtr(1, seeds - 1, root**2, f)) - share

    if special.fdtr(1, seeds - 1, f) <= share:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
    return float(optimize.brentq(excess, 0.0, high, xtol=1e-6)) ** 2
