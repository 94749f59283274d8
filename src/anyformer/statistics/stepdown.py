"""Which arms differ from the baseline: the step-down max-T test by sign flips (Westfall and Young 1993, algorithm 4.1).

If an arm is no different, its differences are as likely with the other sign. All arms share the baseline's runs, so the
signs of a whole seed flip together, which keeps their correlation. The arm that stands out most is compared with the
largest statistic of all arms under each flip, the next one with the largest of the others, and so on:

    p_(j) = max(p_(j-1), share of flips whose max_{i >= j} |T_(i)| is at least the |T_(j)| seen)

The chance of any false finding stays under the level in every mixture of true and false, and p can be as small as
2 / 2^n for any number of arms, where dividing the level among the arms could never reject with six seeds.
"""

import numpy as np
from numpy.typing import NDArray
from scipy import special

from anyformer.statistics.paired import Floats

EXACT_SEEDS, RANDOM_FLIPS = 12, 9999


def adjusted_p(rows: Floats, *, seed: int = 0) -> Floats:
    """[arms, seeds] differences, NaN where a pair is missing -> two-sided p of each arm, adjusted for all of them."""
    surprise = _surprise(rows, _flips(rows.shape[1], seed))
    seen = surprise[0]
    order = np.argsort(seen)
    # from the least surprising arm up: the smallest among the arms that are still in the running
    rivals = np.minimum.accumulate(surprise[:, order[::-1]], axis=1)[:, ::-1]
    shares = (rivals <= seen[order] * (1 + 1e-9)).mean(axis=0)
    adjusted = np.empty(len(rows))
    adjusted[order] = np.maximum.accumulate(shares)
    return adjusted


def _flips(seeds: int, seed: int) -> Floats:
    """[flips, seeds] of ±1, the first all +1. All signs turned give the same |T|, so one sign stays and half do."""
    if seeds > EXACT_SEEDS:
        drawn = np.random.default_rng(seed).integers(0, 2, (RANDOM_FLIPS, seeds))
        return np.where(np.vstack([np.zeros(seeds, dtype=np.int64), drawn]), -1.0, 1.0)
    bits: NDArray[np.int64] = np.arange(2 ** max(seeds - 1, 0))[:, None] >> np.arange(seeds) & 1
    return np.where(bits, -1.0, 1.0)


def _surprise(rows: Floats, flips: Floats) -> Floats:
    """[flips, arms]: the smaller, the larger |T| is; Student's own p where arms differ in their pairs.

    T grows with the share x = (Σd)² / (n Σd²) of a row, and Σd² does not change with the signs: only sums are needed.
    """
    filled, pairs = np.nan_to_num(rows), np.isfinite(rows).sum(axis=1)
    most = pairs * (filled**2).sum(axis=1)
    testable = (pairs > 1) & (most > 0)
    share = (flips @ filled.T) ** 2 / np.where(testable, most, 1.0)
    share = np.clip(share.round(12), 0.0, 1.0)  # equal sums in another order are a tie, not a rank
    if len(np.unique(pairs[testable])) < 2:
        return np.where(testable, 1.0 - share, 1.0)  # the same order, a hundred times faster
    p = special.betaincc(0.5, np.where(testable, pairs - 1, 2) / 2, share)
    return np.where(testable, p, 1.0)
