"""The step-down test: against its definition in loops and scipy's, and by its errors where the truth is known."""

import itertools

import numpy as np
import pytest
from scipy import stats
from tests.statistics.studies import studies

from anyformer.statistics.paired import Floats, _surprise, adjusted_p


def by_definition(rows: Floats) -> list[float]:
    """Westfall and Young's algorithm, flip by flip and step by step."""
    seen = [abs(stats.ttest_1samp(row, 0.0).statistic) for row in rows]
    order, adjusted, least = np.argsort(seen)[::-1], [0.0] * len(rows), 0.0
    flips = [rows * np.array(signs) for signs in itertools.product((1, -1), repeat=rows.shape[1])]
    scores = [[abs(stats.ttest_1samp(row, 0.0).statistic) for row in flipped] for flipped in flips]
    for step, arm in enumerate(order):
        beaten = [max(score[other] for other in order[step:]) >= seen[arm] - 1e-9 for score in scores]
        adjusted[arm] = least = max(least, float(np.mean(beaten)))
    return adjusted


def test_it_is_westfall_and_youngs_algorithm() -> None:
    for rows in studies(5, 4, 5, effect=1.0):
        np.testing.assert_allclose(adjusted_p(rows), by_definition(rows))


def test_one_arm_alone_is_scipys_permutation_test() -> None:
    for rows in studies(5, 2, 7, effect=0.7):
        theirs = stats.permutation_test(tuple(rows), np.sum, permutation_type="samples", n_resamples=np.inf)
        assert adjusted_p(rows)[0] == pytest.approx(theirs.pvalue)


@pytest.mark.parametrize("arms", [2, 8, 30])
def test_six_seeds_can_reject_with_any_number_of_arms(arms: int) -> None:
    rows = next(studies(1, arms, 6))
    rows[0] = [5.0, 5.1, 4.9, 5.2, 5.0, 4.8]
    assert adjusted_p(rows)[0] == 2 / 2**6
    rows[1:] = rows[0] * 1.3
    assert (adjusted_p(rows) == 2 / 2**6).all()


def test_equal_arms_and_equal_differences_are_ties() -> None:
    assert (adjusted_p(np.zeros((3, 6))) == 1.0).all()
    np.testing.assert_array_equal(adjusted_p(np.array([[0.1] * 6, [0.0] * 6])), [2 / 2**6, 1.0])


def test_a_missing_pair_is_as_if_the_seed_had_not_been_run() -> None:
    rows = next(studies(1, 2, 8, effect=0.8))
    with_gap = np.insert(rows, 3, np.nan, axis=1)
    assert adjusted_p(with_gap) == pytest.approx(adjusted_p(rows))
    only_one = np.array([*with_gap, [1.0, *[np.nan] * 8]])
    assert adjusted_p(only_one) == pytest.approx([*adjusted_p(rows), 1.0])


def test_arms_with_different_numbers_of_pairs_compare_by_students_p() -> None:
    rows = next(studies(1, 4, 8, effect=0.8))
    rows[1, :2] = np.nan
    found = _surprise(rows, np.ones((1, 8)))[0]
    assert found == pytest.approx([stats.ttest_1samp(row[np.isfinite(row)], 0.0).pvalue for row in rows])


def test_random_flips_are_close_to_all_of_them_and_repeat() -> None:
    rows = next(studies(1, 4, 14, effect=0.6))
    assert (adjusted_p(rows, seed=1) == adjusted_p(rows, seed=1)).all()
    np.testing.assert_allclose(adjusted_p(rows, seed=1), adjusted_p(rows, seed=2), atol=0.02)
    assert adjusted_p(rows + 20.0).max() == pytest.approx(1 / 10_000, rel=3)  # never zero


def found(count: int, seeds: int, effect: float) -> tuple[float, float]:
    """Of studies of 8 arms: the share that finds anything among those that do not differ, and the one that does."""
    p = np.array([adjusted_p(rows) for rows in studies(count, 8, seeds, effect=effect)]) <= 0.05
    return float(p[:, 1:].any(axis=1).mean()), float(p[:, 0].mean())


def test_some_studies_of_equal_arms_find_little_and_one_large_difference_is_found() -> None:
    p = np.array([adjusted_p(rows) for rows in studies(300, 8, 6)])
    assert (p <= 0.05).any(axis=1).mean() <= 0.065
    assert found(300, 6, effect=3.0)[1] >= 0.75


@pytest.mark.slow
def test_a_thousand_studies_of_equal_arms_rarely_find_a_difference() -> None:
    for seeds in (6, 10):
        p = np.array([adjusted_p(rows) for rows in studies(1000, 8, seeds)])
        assert (p <= 0.05).any(axis=1).mean() <= 0.065


@pytest.mark.slow
def test_a_difference_of_three_paired_deviations_is_found_and_no_other() -> None:
    false, true = found(2000, 6, effect=3.0)
    assert true >= 0.75
    assert false <= 0.065
