"""Arms against a baseline, paired by seed: effects of the seed (data order, for example) cancel in the difference.

    d_s = value_s - baseline_s,   mean(d) ± t_{n-1} sd(d) / √n,   effect = mean(d) / sd(d)

A failed run has no value, so its pair is left out, not counted as zero. The interval is Student's, because bootstrap
intervals are too narrow for so few seeds. With k arms each interval has the level 0.95^(1/k) (Šidák 1967): together
they hold with a probability of at least 0.95, however the shared baseline correlates them, and every arm may have its
own variance and its own number of pairs.
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
    """Values minus those of the baseline, [arms, seeds]; NaN where either run failed or is not finite."""
    table = np.array(values, dtype=np.float64)
    table[~np.isfinite(table)] = np.nan
    return np.asarray(table - table[baseline], dtype=np.float64)


def t_interval(values: ArrayLike, level: float = LEVEL) -> Interval:
    """The mean with Student's interval; one value has no interval, and the mean of no values is NaN."""
    numbers = present(values)
    if len(numbers) < 2:
        return Interval(float(numbers[0]) if len(numbers) else float("nan"))
    middle, error = float(numbers.mean()), float(numbers.std(ddof=1)) / math.sqrt(len(numbers))
    half = float(special.stdtrit(len(numbers) - 1, (1 + level) / 2)) * error
    return Interval(middle, middle - half, middle + half)


def simultaneous(rows: Sequence[ArrayLike] | Floats, level: float = LEVEL) -> list[Interval]:
    """Simultaneous confidence intervals: one for each row, all of which hold together at this level."""
    family = sum(len(present(row)) > 1 for row in rows)
    return [t_interval(row, level ** (1 / max(family, 1))) for row in rows]


def effect_size(row: ArrayLike) -> float | None:
    """Mean difference in paired standard deviations (Cohen's d_z); None if the differences do not vary."""
    numbers = present(row)
    spread = numbers.std(ddof=1) if len(numbers) > 1 else 0.0
    return float(numbers.mean() / spread) if spread else None


def present(values: ArrayLike) -> Floats:
    """The finite values."""
    numbers = np.asarray(values, dtype=np.float64)
    return numbers[np.isfinite(numbers)]
