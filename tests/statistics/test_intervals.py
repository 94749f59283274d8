"""Intervals by the bootstrap: what scipy says, and what mathematics does."""

import math

import numpy as np
import pytest
from scipy import stats

from anyformer.statistics.intervals import Interval, bootstrap, mean, ratio


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
    bootstrap(lambda weights: seen.append(weights) or 0.0, 7, resamples=20)  # type: ignore[func-returns-value]
    assert all(weights.sum() == 7 for weights in seen) and any(weights.max() > 1 for weights in seen[1:])


def test_the_same_seed_gives_the_same_interval() -> None:
    assert mean([1.0, 2.0, 5.0, 7.0]) == mean([1.0, 2.0, 5.0, 7.0])


def test_one_unit_has_no_interval() -> None:
    assert mean([4.0]) == Interval(4.0, None, None)


def test_a_rising_function_takes_the_ends_along() -> None:
    assert Interval(0.0, -1.0, 1.0).through(math.exp) == Interval(1.0, math.exp(-1), math.e)
    assert Interval(0.0).through(math.exp) == Interval(1.0)
