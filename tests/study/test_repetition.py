"""The verdicts of a study repeated with fresh seeds: which come again, and that they do not change the study."""

from pathlib import Path

import numpy as np
import pytest
from tests.study.small import tiny

from anyformer.core import decode
from anyformer.errors import SpecError
from anyformer.reporting.study_report import study_html, study_markdown
from anyformer.statistics.comparison import Comparison, judge
from anyformer.study.budget_curves import results_of
from anyformer.study.repetition import repeated_verdicts, repetition_sentence
from anyformer.study.study import StudySpec
from anyformer.study.study_cost import announcement
from anyformer.study.study_folder import STUDY, StudyFolder

ARMS = ["base", "lower", "gone", "turned", "open"]
NOISE = np.array([-0.01, 0.0, 0.01, 0.02, -0.02, 0.005, 0.0, -0.005])


def compared(*means: float) -> Comparison:
    """Eight seeds of the arms with these differences from the base."""
    rows = [3.0 + mean + (place + 1) * NOISE for place, mean in enumerate((0.0, *means))]
    return judge(ARMS, rows)


def test_a_verdict_comes_again_if_fresh_seeds_settle_it_with_the_same_sign() -> None:
    first, fresh = compared(-0.5, -0.4, 0.3, 0.0), compared(-0.6, 0.0, -0.3, 0.5)
    verdicts = repeated_verdicts(first, fresh)
    assert [(one.name, one.again) for one in verdicts] == [("lower", True), ("gone", False), ("turned", False)]
    (sentence,) = repetition_sentence(verdicts, 8)
    assert sentence == "Repeated with eight fresh seeds, 1 of 3 verdicts came again, but not gone, turned."
    assert verdicts[0].row["came again"] == "yes" and verdicts[1].row["came again"] == "no"
    assert repetition_sentence(verdicts[:1], 8) == ["Repeated with eight fresh seeds, 1 of 1 verdict came again."]
    assert repetition_sentence([], 8) == []


def test_fresh_seeds_are_other_seeds_however_many_the_study_gets() -> None:
    spec = decode(StudySpec, {"seeds": 300, "repeats": 8})
    assert len(set(spec.every_seed)) == 308 and announcement([], spec).startswith("0 arms x 300 seeds and 8 fresh ones")
    with pytest.raises(SpecError, match=r"repeats: 3 seeds cannot settle a difference. Use 6 or more, or 0."):
        decode(StudySpec, {"repeats": 3})


def test_a_study_is_repeated_at_its_budgets_after_it_has_ended(tmp_path: Path) -> None:
    slow = ("study.arms=['transformer', 'slow']", "arms.slow.like=transformer", "arms.slow.optimizer.lr=1e-6")
    words = ("study.budgets=[4]", "study.seeds=6", "evaluate.every=0", *slow)
    before = tiny(tmp_path, *words)
    assert before.repeated == [] and "fresh" not in before.verdict
    after = tiny(tmp_path, *words, "study.repeats=6")
    assert after.comparison == before.comparison and after.unfinished == 0
    assert len(list((tmp_path / "study").glob("steps-*/*/seed-1000[0-5]"))) == 12
    settled = [one for result in after.curves.results for one in result.comparison.differences if one.settled]  # type: ignore[union-attr]
    assert len(settled) == len(after.repeated) == 1 and after.repeated[0].budget == 4
    assert f"Repeated with six fresh seeds, {sum(one.again for one in after.repeated)} of 1 verdict " in after.verdict
    assert "Repeated with fresh seeds" in study_html(after) and "| slow at 4 steps | " in study_markdown(after)
    again = results_of(tmp_path / "study").to_dict()
    assert again == after.to_dict() and [one["steps"] for one in again["repeated"]] == [4]


def test_runs_that_repeat_a_verdict_are_not_fine_tuned(tmp_path: Path) -> None:
    (tmp_path / STUDY).write_text("[study]\nrepeats = 6\n[downstream.next]\nmetric = 'perplexity'\n")
    folder = StudyFolder.open(tmp_path)
    assert folder.tasks_of(0) == {"next": "perplexity"} and folder.tasks_of(folder.spec.fresh_seeds[0]) == {}
