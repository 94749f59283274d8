"""The verdict: says what the numbers allow, and no more."""

import numpy as np
import pytest

from anyformer.errors import SpecError
from anyformer.statistics.comparison import judge, verdict
from anyformer.statistics.paired import Floats

NAMES = ("transformer", "lstm", "cnn")


def measured(seeds: int, *gains: float) -> Floats:
    """Losses of the baseline and of arms that are off by so many of their own deviations."""
    noise = np.random.default_rng(3).normal(0.0, 0.01, (1 + len(gains), seeds))
    return 3.0 + noise + 0.01 * np.array([0.0, *gains])[:, None]


def test_a_clear_difference_is_named_with_its_side_and_interval() -> None:
    study = judge(NAMES, measured(6, 12.0, 0.0))
    said = verdict(study)
    assert said.startswith("lstm has a higher loss than transformer: +0.1") and "p = 0.031." in said
    assert "No evidence of a difference between transformer and cnn; " in said and " more seeds would be needed" in said
    assert study.differences[0].p == 2 / 2**6 and study.differences[0].needed is None


def test_without_evidence_it_says_how_many_seeds_more() -> None:
    study = judge(NAMES, [[0.0] * 6, [0.1, 0.5, -0.2, 0.4, 0.3, 0.0], [0.3, -0.2, 0.1, -0.1, 0.2, -0.2]])
    lstm, cnn = (one.needed for one in study.differences)
    assert lstm and cnn and lstm.low < lstm.seeds < cnn.seeds <= cnn.high
    said = "No evidence of a difference between transformer and lstm or cnn; about "
    said += f"{lstm.seeds - 6} more seeds would be needed for lstm, the nearest ({lstm.low - 6} or more)."
    assert verdict(study) == said


def test_a_difference_that_is_all_chance_has_no_number_of_seeds() -> None:
    said = verdict(judge(NAMES[:2], [[0.0] * 6, [0.3, -0.2, 0.1, -0.1, 0.2, -0.3]]))
    assert said.startswith("No evidence of a difference between transformer and lstm; at least ")
    assert said.endswith(" more seeds would be needed, and how many cannot be told.")


def test_where_interval_and_test_disagree_it_says_so() -> None:
    study = judge(NAMES, [[0.0] * 6, [1.0, 1.2, 0.9, 1.4, 1.1, 1.5], [0.5, 0.6, 0.7, 0.4, 0.5, -0.01]])
    cnn = study.differences[1]
    assert cnn.p == 4 / 2**6 and cnn.interval.low is not None and cnn.interval.low > 0
    assert "The interval of cnn leaves out 0, but p = 0.062 without" in verdict(study)


def test_fewer_than_six_seeds_are_a_look() -> None:
    study = judge(NAMES, measured(5, 40.0, 0.0))
    assert study.is_look and all(one.p is None for one in study.differences)
    assert verdict(study).startswith("A look, not a verdict: 5 seeds with both runs finished, and fewer than 6 cannot")
    assert "p =" not in verdict(study) and "lstm +0.4" in verdict(study)


def test_an_arm_whose_runs_failed_does_not_stand_in_the_way_of_the_others() -> None:
    values = measured(6, 12.0, 50.0)
    values[2, 0] = np.nan
    study = judge(NAMES, values)
    assert study.differences[0].p == 2 / 2**6 and study.differences[1].p is None
    assert "cnn: 5 of 6 pairs finished, too few for a verdict; +0." in verdict(study)
    values[2] = np.inf
    assert "cnn: 0 of 6 pairs finished, too few for a verdict; unknown." in verdict(judge(NAMES, values))


def test_a_baseline_that_never_finished_leaves_a_look_at_nothing() -> None:
    values = measured(6, 1.0, 2.0)
    values[0] = np.nan
    assert verdict(judge(NAMES, values)).startswith("A look, not a verdict: 0 seeds with both runs finished")


def test_any_arm_may_be_the_baseline() -> None:
    study = judge(NAMES, measured(6, 12.0, 0.0), baseline=1)
    assert [one.arm for one in study.differences] == ["transformer", "cnn"]
    said = verdict(study)
    assert said.startswith("Lower loss than lstm: ") and "transformer -0.1" in said and "cnn -0.1" in said


def test_many_clear_differences_are_told_side_by_side_the_largest_first() -> None:
    said = verdict(judge((*NAMES, "gru"), measured(6, -20.0, -40.0, 30.0)))
    lower, higher = said.split(". gru has a higher loss than transformer: +0.")
    assert lower.startswith("Lower loss than transformer: cnn -0.4") and "; lstm -0.1" in lower
    assert higher.endswith("p = 0.031.")


def test_identical_arms_are_no_evidence_and_no_promise() -> None:
    same = np.tile(measured(6), (2, 1))
    assert verdict(judge(NAMES[:2], same)) == "No evidence of a difference between transformer and lstm."


@pytest.mark.parametrize("values", [np.ones(6), np.ones((3, 6)), np.ones((1, 6))])
def test_a_table_that_does_not_fit_is_refused(values: Floats) -> None:
    with pytest.raises(SpecError, match="two arms or more"):
        judge(NAMES[: 1 if len(values) == 1 else 2], values)
