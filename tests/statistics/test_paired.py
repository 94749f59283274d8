"""Paired differences and their intervals, against scipy and against studies of which the truth is known."""

import numpy as np
import pytest
from scipy import stats
from tests.statistics.studies import studies

from anyformer.statistics.paired import differences, effect_size, simultaneous, t_interval

VALUES = np.array([[3.0, 3.2, 2.9, 3.1], [2.5, 2.9, 2.2, 2.8], [3.0, np.nan, 3.3, np.inf]])


def test_a_failed_run_takes_its_pair_away_and_is_never_a_zero() -> None:
    rows = differences(VALUES)
    np.testing.assert_allclose(rows[1], [-0.5, -0.3, -0.7, -0.3])
    np.testing.assert_allclose(rows[2], [0.0, np.nan, 0.4, np.nan])
    assert t_interval(rows[2]).value == pytest.approx(0.2)


def test_the_interval_of_one_arm_is_scipys() -> None:
    row = differences(VALUES)[1]
    ours, theirs = simultaneous([row])[0], stats.ttest_1samp(row, 0.0).confidence_interval(0.95)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))
    assert effect_size(row) == pytest.approx(stats.ttest_1samp(row, 0.0).statistic / 2)


def test_more_arms_make_wider_intervals_and_an_empty_one_does_not_count() -> None:
    row = differences(VALUES)[1]
    alone, beside = simultaneous([row])[0], simultaneous([row, row])[0]
    with_failed = simultaneous([row, np.full(4, np.nan), np.array([1.0, np.nan, np.nan, np.nan])])
    assert beside.high > alone.high == with_failed[0].high
    assert np.isnan(with_failed[1].value) and with_failed[1].low is None
    assert with_failed[2].value == 1.0 and with_failed[2].high is None


def test_without_spread_there_is_no_effect_size() -> None:
    assert effect_size([0.5, 0.5, 0.5]) is effect_size([1.0]) is effect_size([]) is None


def coverage(count: int, seeds: int, arms: int = 8) -> float:
    """The share of studies in which every interval holds the truth: one paired deviation, then nothing."""
    truth = np.array([np.sqrt(2.0), *[0.0] * (arms - 2)])
    inside = []
    for rows in studies(count, arms, seeds, effect=1.0):
        found = simultaneous(rows)
        inside.append(all(one.low <= true <= one.high for one, true in zip(found, truth, strict=True)))
    return float(np.mean(inside))


@pytest.mark.parametrize("seeds", [3, 6, 10])
def test_the_intervals_of_eight_arms_hold_at_once_in_a_few_studies(seeds: int) -> None:
    assert 0.91 <= coverage(400, seeds) <= 0.99  # 95% ± 3.3 standard errors


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 6, 10])
@pytest.mark.parametrize("arms", [2, 8])
def test_intervals_cover_as_often_as_they_say(seeds: int, arms: int) -> None:
    assert 0.93 <= coverage(10_000, seeds, arms) <= 0.98
