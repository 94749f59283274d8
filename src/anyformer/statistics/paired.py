"""Arms against a baseline, paired by seed: effects of the seed (data order, for example) cancel in the difference.

    d_s = value_s - baseline_s,   mean(d) ± t_{n-1} sd(d) / √n,   effect = mean(d) / sd(d)

A failed run has no value, so its pair is left out, not counted as zero. The interval is Student's, because bootstrap
intervals are too narrow for so few seeds. With k arms each interval has the level 0.95^(1/k) (Šidák 1967): together
they hold with a probability of at least 0.95, however the shared baseline correlates them.

The step-down max-T test by sign flips (Westfall and Young 1993, algorithm 4.1) decides which arms differ. Under the
null hypothesis the differences of an arm are symmetric around 0. The signs of one seed flip together in all arms, which
preserves the correlation through the shared baseline. The arm with the largest |T| is compared with the maximum over
all arms under each flip, the next one with the maximum over the remaining arms, etc.:

    p_(j) = max(p_(j-1), share of flips whose max_{i >= j} |T_(i)| is at least the observed |T_(j)|)

The family-wise error rate is controlled for any set of true null hypotheses, and p can be as small as 2 / 2^n for any
number of arms. A Bonferroni correction could not reject with six seeds and two arms or more.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from anyformer.statistics.intervals import LEVEL, Floats, Interval

EXACT_SEEDS, RANDOM_FLIPS = 12, 9999


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


def simultaneous(rows: Sequence[ArrayLike] | Floats) -> list[Interval]:
    """Simultaneous confidence intervals: one for each row, all of which hold together at the level 0.95."""
    family = sum(len(present(row)) > 1 for row in rows)
    return [t_interval(row, LEVEL ** (1 / max(family, 1))) for row in rows]


def effect_size(row: ArrayLike) -> float | None:
    """Mean difference in paired standard deviations (Cohen's d_z); None if the differences do not vary."""
    numbers = present(row)
    spread = numbers.std(ddof=1) if len(numbers) > 1 else 0.0
    return float(numbers.mean() / spread) if spread else None


def present(values: ArrayLike) -> Floats:
    """The finite values."""
    numbers = np.asarray(values, dtype=np.float64)
    return numbers[np.isfinite(numbers)]


def adjusted_p(rows: Floats, *, seed: int = 0) -> Floats:
    """Two-sided p of each arm, adjusted for all arms, from differences [arms, seeds]; NaN marks a missing pair."""
    surprise = _surprise(rows, _flips(rows.shape[1], seed))
    seen = surprise[0]
    order = np.argsort(seen)
    # Cumulative minimum from the least extreme arm up: the most extreme value among the arms not yet tested.
    rivals = np.minimum.accumulate(surprise[:, order[::-1]], axis=1)[:, ::-1]
    shares = (rivals <= seen[order] * (1 + 1e-9)).mean(axis=0)
    adjusted = np.empty(len(rows))
    adjusted[order] = np.maximum.accumulate(shares)
    return adjusted


def _flips(seeds: int, seed: int) -> Floats:
    """[flips, seeds] of ±1, the first all +1. Negating all signs gives the same |T|: half of the flips suffice."""
    if seeds > EXACT_SEEDS:
        drawn = np.random.default_rng(seed).integers(0, 2, (RANDOM_FLIPS, seeds))
        return np.where(np.vstack([np.zeros(seeds, dtype=np.int64), drawn]), -1.0, 1.0)
    bits: NDArray[np.int64] = np.arange(2 ** max(seeds - 1, 0))[:, None] >> np.arange(seeds) & 1
    return np.where(bits, -1.0, 1.0)


def _surprise(rows: Floats, flips: Floats) -> Floats:
    """[flips, arms]: a value that decreases with |T|; the p of Student's test if arms differ in the number of pairs.

    |T| increases with x = (Σd)² / (n Σd²), and Σd² does not depend on the signs, so only sums are computed.
    """
    filled, pairs = np.nan_to_num(rows), np.isfinite(rows).sum(axis=1)
    most = pairs * (filled**2).sum(axis=1)
    testable = (pairs > 1) & (most > 0)
    share = (flips @ filled.T) ** 2 / np.where(testable, most, 1.0)
    share = np.clip(share.round(12), 0.0, 1.0)  # sums that differ only in rounding are ties
    if len(np.unique(pairs[testable])) < 2:
        return np.where(testable, 1.0 - share, 1.0)  # same order as p, and a hundred times faster
    p = special.betaincc(0.5, np.where(testable, pairs - 1, 2) / 2, share)
    return np.where(testable, p, 1.0)
