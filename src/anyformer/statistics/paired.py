"""Arms against a baseline, seed by seed: what both owe to the seed (data order, say) cancels in the difference.

    d_s = value_s - baseline_s,   mean(d) ± t_{n-1} sd(d) / √n,   effect = mean(d) / sd(d)

A run that failed has no value, so its pair is missing: the pairs there are count, and never a zero in its place.
Student's interval, because the bootstrap's are too narrow for so few seeds. Of k arms each interval has the level
0.95^(1/k) (Šidák 1967): all hold together at least as often as 0.95 says, whatever the correlation that the shared
baseline brings, and every arm may have its own spread and its own number of pairs.
"""

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from anyformer.statistics.intervals import LEVEL, Interval

Floats: TypeAlias = NDArray[np.float64]


def differences(values: ArrayLike, baseline: int = 0) -> Floats:
    """[arms, seeds] -> [arms, seeds], each minus the baseline's; NaN where either run failed or is not finite."""
    table = np.array(values, dtype=np.float64)
    table[~np.isfinite(table)] = np.nan
    return np.asarray(table - table[baseline], dtype=np.float64)


def t_interval(values: ArrayLike, level: float = LEVEL) -> Interval:
    """The mean with Student's interval; no interval with one value, and NaN with none."""
    found = present(values)
    if len(found) < 2:
        return Interval(float(found[0]) if len(found) else float("nan"))
    middle, error = float(found.mean()), float(found.std(ddof=1)) / math.sqrt(len(found))
    half = float(special.stdtrit(len(found) - 1, (1 + level) / 2)) * error
    return Interval(middle, middle - half, middle + half)


def simultaneous(rows: Sequence[ArrayLike] | Floats, level: float = LEVEL) -> list[Interval]:
    """An interval for each row, wide enough that all of them hold at once at this level."""
    family = sum(len(present(row)) > 1 for row in rows)
    return [t_interval(row, level ** (1 / max(family, 1))) for row in rows]


def effect_size(row: ArrayLike) -> float | None:
    """Mean difference in paired standard deviations (Cohen's d_z); None where there is no spread to measure it by."""
    found = present(row)
    spread = found.std(ddof=1) if len(found) > 1 else 0.0
    return float(found.mean() / spread) if spread else None


def present(values: ArrayLike) -> Floats:
    """Those that are there."""
    numbers = np.asarray(values, dtype=np.float64)
    return numbers[np.isfinite(numbers)]
