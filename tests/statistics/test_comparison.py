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


MORE = "anyformer compare RUN --seeds"


def test_a_clear_difference_is_told_with_seeds_interval_and_p() -> None:
    study = judge(NAMES[:2], [[3.0] * 8, [2.84, 2.83, 2.86, 2.80, 2.88, 2.85, 2.82, 2.84]], metric="test loss")
    sentence = "lstm is lower on all eight seeds, -0.160 (-0.180 to -0.140), p = 0.008."
    assert verdict(study, MORE) == f"Test loss compared with transformer: {sentence}"
    assert study.differences[0].p == 2 / 2**8 and study.differences[0].needed is None


def test_clear_differences_come_first_and_the_largest_of_them_first() -> None:
    text = verdict(judge((*NAMES, "gru"), measured(6, 0.0, -20.0, 30.0)))
    assert text.index("gru is higher on all six seeds") < text.index("cnn is lower on all six seeds")
    assert text.index("cnn is lower") < text.index("lstm is not settled: ")


def test_seeds_that_agree_but_are_too_few_for_so_many_comparisons_are_told_apart_from_chance() -> None:
    far, near = [1.0, 1.2, 0.9, 1.4, 1.1, 1.5], [-0.1, -0.2, -2.0, -0.1, -1.5, -0.4]
    study = judge((*NAMES, "gru"), [[0.0] * 6, far, near, [0.5, -2.6, 0.4, 0.2, -2.9, 0.1]])
    cnn = study.differences[1]
    assert cnn.p is not None and cnn.p > 0.05 and cnn.needed is not None and cnn.needed.seeds > 6
    text = verdict(study, MORE)
    assert "cnn is not settled: lower on all six seeds, -0.717" in text
    assert f", above 0.05 only because of the adjustment for three comparisons; about {cnn.needed.seeds} seeds" in text
    assert f"run `{MORE} {cnn.needed.seeds}`" in text


def test_the_next_number_of_seeds_is_the_one_that_the_verdict_names() -> None:
    for values in ([[0.0] * 6, [0.1, 0.5, -0.2, 0.4, 0.3, 0.0]], [[0.0] * 3, [0.1, 0.2, 0.3]]):
        study = judge(NAMES[:2], values)
        assert f"`{MORE} {study.next_seeds}`" in verdict(study, MORE)
    assert judge(NAMES[:2], [[0.0] * 8, [-0.1 - 0.01 * seed for seed in range(8)]]).next_seeds == 16


def test_a_bad_run_of_one_arm_leaves_another_open_without_contradiction() -> None:
    lstm, cnn = [-0.115, -0.140, -0.155, -0.165, -0.177, -0.208], [-0.31, -0.33, -0.35, -0.30, -0.36, -0.34]
    study = judge((*NAMES, "mamba"), [[0.0] * 6, lstm, cnn, [-0.26, -0.28, 0.241, -0.30, -0.32, -0.29]])
    text = verdict(study)
    assert "cnn is lower on all six seeds, -0.332 (-0.365 to -0.298), p = 0.031." in text  # six seeds are enough for it
    adjusted = "p = 0.062, above 0.05 only because of the adjustment for three comparisons"
    assert f"lstm is not settled: lower on all six seeds, -0.160 (-0.206 to -0.114), {adjusted}; about 8" in text
    alone = verdict(judge(NAMES[:2], [[0.0] * 6, lstm]))
    assert "lstm is lower on all six seeds, -0.160 (-0.193 to -0.127), p = 0.031." in alone


def test_the_nearest_of_the_open_differences_has_the_command_that_may_settle_it() -> None:
    study = judge(NAMES, [[0.0] * 6, [0.1, 0.5, -0.2, 0.4, 0.3, 0.0], [0.3, -0.2, 0.1, -0.1, 0.2, -0.2]])
    lstm, cnn = (one.needed for one in study.differences)
    assert lstm and cnn and lstm.low < lstm.seeds < cnn.seeds <= cnn.high
    text = verdict(study, MORE)
    likely = f"about {lstm.seeds} seeds may settle it ({lstm.low} or more): run `{MORE} {lstm.seeds}`"
    assert f"lstm is not settled: higher on four of six seeds, +0.183 (-0.156 to +0.523), p = 0.281; {likely}." in text
    assert text.count(MORE) == 1


def test_a_difference_that_is_all_chance_has_no_number_of_seeds() -> None:
    text = verdict(judge(NAMES[:2], [[0.0] * 6, [0.3, -0.2, 0.1, -0.1, 0.2, -0.3]]), MORE)
    assert "lstm is not settled: lower on average, on" not in text
    assert text.endswith(" seeds would be needed, and how many cannot be told.")


@pytest.mark.parametrize("seeds", [6, 7, 8, 12, 20])
def test_more_seeds_are_needed_than_were_run(seeds: int) -> None:
    generator = np.random.default_rng(seeds)
    for gain in np.linspace(0.0, 2.0, 20):
        values = np.vstack([np.zeros(seeds), generator.normal(gain, 1.0, (3, seeds))])
        for one in judge((*NAMES, "gru"), values).differences:
            assert one.needed is None or seeds < one.needed.low <= one.needed.seeds <= one.needed.high
            assert one.needed is None or one.needed.seeds >= seeds + 2


def test_where_interval_and_test_disagree_it_says_so() -> None:
    study = judge(NAMES, [[0.0] * 6, [1.0, 1.2, 0.9, 1.4, 1.1, 1.5], [0.5, 0.6, 0.7, 0.4, 0.5, -0.01]])
    cnn = study.differences[1]
    assert cnn.p == 4 / 2**6 and cnn.interval.low is not None and cnn.interval.low > 0
    assert "p = 0.062, and the interval excludes 0 only if differences are normal" in verdict(study)


@pytest.mark.parametrize(
    ("seeds", "many"), [(1, "one seed cannot"), (2, "two seeds cannot"), (5, "five seeds cannot tell a difference")]
)
def test_fewer_than_six_seeds_are_a_look(seeds: int, many: str) -> None:
    study = judge(NAMES, measured(seeds, 40.0, 0.0))
    text = verdict(study, MORE)
    assert study.is_look and all(one.p is None for one in study.differences)
    assert text.startswith(f"A look, not a verdict: {many}") and text.endswith(f" Run `{MORE} 8`.")
    words = {1: "the only seed", 2: "both seeds", 5: "all five seeds"}
    assert f"lstm is higher on {words[seeds]}, +0." in text and "p =" not in text


def test_an_arm_whose_runs_failed_does_not_stand_in_the_way_of_the_others() -> None:
    values = measured(6, 12.0, 50.0)
    values[2, 0] = np.nan
    study = judge(NAMES, values)
    assert study.differences[0].p == 2 / 2**6 and study.differences[1].p is None
    assert "cnn is not settled: higher on all five seeds, +0.5" in verdict(study)
    assert ", but only five of six seeds have both runs finished." in verdict(study)
    values[2] = np.inf
    assert "cnn is not settled: no seed has both runs finished." in verdict(judge(NAMES, values))


def test_a_baseline_that_never_finished_leaves_a_look_at_nothing() -> None:
    values = measured(6, 1.0, 2.0)
    values[0] = np.nan
    assert verdict(judge(NAMES, values)).startswith("A look, not a verdict: no seed has both runs finished.")


def test_any_arm_may_be_the_baseline() -> None:
    study = judge(NAMES, measured(6, 12.0, 0.0), baseline=1)
    assert [one.arm for one in study.differences] == ["transformer", "cnn"]
    text = verdict(study)
    assert text.startswith("Loss compared with lstm: ") and "transformer is lower on all six seeds, -0.1" in text


def test_identical_arms_are_equal_and_no_promise() -> None:
    same = np.tile(measured(6), (2, 1))
    assert verdict(judge(NAMES[:2], same), MORE).endswith("lstm is not settled: equal on all six seeds.")


@pytest.mark.parametrize("values", [np.ones(6), np.ones((3, 6)), np.ones((1, 6))])
def test_a_table_that_does_not_fit_is_refused(values: Floats) -> None:
    with pytest.raises(SpecError, match="two arms or more"):
        judge(NAMES[: 1 if len(values) == 1 else 2], values)
