"""Which arms differ from the baseline: the step-down max-T test by sign flips (Westfall and Young 1993, algorithm 4.1).

Under the null hypothesis the differences of an arm are symmetric around 0. All arms share the runs of the baseline, so
the signs of one seed flip together in all arms, which preserves their correlation. The arm with the largest |T| is
compared with the maximum over all arms under each flip, the next one with the maximum over the remaining arms, etc.:

    p_(j) = max(p_(j-1), share of flips whose max_{i >= j} |T_(i)| is at least the observed |T_(j)|)

The family-wise error rate is controlled for any set of true null hypotheses, and p can be as small as 2 / 2^n for any
number of arms. A Bonferroni correction could not reject with six seeds and two arms or more.
"""

import numpy as np
from numpy.typing import NDArray
from scipy import special

from anyformer.statistics.paired import Floats

EXACT_SEEDS, RANDOM_FLIPS = 12, 9999


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
