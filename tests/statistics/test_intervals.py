"""Intervals by the bootstrap: what scipy says, and what mathematics does."""

import math

import numpy as np
import pytest
from scipy import stats

from anyformer.statistics.intervals import (
    ALIKE,
    TOO_FEW,
    Interval,
    bootstrap,
    difference,
    mean,
    ratio,
    share,
    share_in_groups,
)


def test_the_interval_of_a_mean_is_near_that_of_students_t() -> None:
    values = np.random.default_rng(1).normal(3.0, 2.0, 400)
    found = mean(values)
    low, high = stats.t.interval(0.95, len(values) - 1, values.mean(), stats.sem(values))
    assert found.value == pytest.approx(values.mean())
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.03)


def test_it_holds_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    samples = [rng.exponential(1.0, 60) for _ in range(150)]
    found = [bootstrap(lambda weights, own=own: weights @ own / 60, 60, resamples=199) for own in samples]  # type: ignore
    held = np.mean([it.low is not None and it.high is not None and it.low <= 1.0 <= it.high for it in found])
    assert 0.87 <= held <= 0.99


def test_a_ratio_is_of_sums_and_not_a_mean_of_ratios() -> None:
    assert ratio([1.0, 100.0], [1, 50]).value == pytest.approx(101 / 51)


def test_a_weight_counts_how_often_a_unit_was_drawn() -> None:
    seen = []
    bootstrap(lambda weights: seen.append(weights) or 0.0, 17, resamples=20)  # type: ignore[func-returns-value]
    assert all(weights.sum() == 17 for weights in seen) and any(weights.max() > 1 for weights in seen[1:])


def test_the_same_seed_gives_the_same_interval() -> None:
    assert mean(range(12)) == mean(range(12)) and mean(range(12)).low is not None


@pytest.mark.parametrize("count", [1, 3, 9])
def test_few_units_have_no_interval_but_their_share_has(count: int) -> None:
    assert mean(range(count)) == Interval((count - 1) / 2, None, None, TOO_FEW)
    exact = stats.binomtest(count, count).proportion_ci(method="wilson")
    assert (share([True] * count).low, share([True] * count).high) == pytest.approx((exact.low, exact.high))


def test_units_that_are_all_alike_have_no_interval_of_one_point() -> None:
    assert mean([0.25] * 40) == Interval(0.25, None, None, ALIKE)
    assert difference(mean([0.25] * 40), mean([0.5] * 40)) == Interval(-0.25, None, None, ALIKE)


def test_a_share_in_groups_counts_each_group_once_if_they_are_all_alike() -> None:
    assert share_in_groups([5.0] * 20, [5] * 20) == share([1.0] * 20)
    assert "resamples" in share_in_groups([5.0, 3.0] * 10, [5] * 20).method


def test_a_rising_function_takes_the_ends_along() -> None:
    assert Interval(0.0, -1.0, 1.0).through(math.exp) == Interval(1.0, math.exp(-1), math.e)
    assert Interval(0.0).through(math.exp) == Interval(1.0)
