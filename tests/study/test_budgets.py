"""A study at several budgets: a study for each, and where the curves of two arms cross."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.study.small import tiny

from anyformer.errors import SpecError
from anyformer.reporting.study_report import study_html, study_markdown, write_study_report
from anyformer.run import Run
from anyformer.study.budget_curves import BudgetCurves, results_of
from anyformer.study.study import read_study


def curves(monkeypatch: pytest.MonkeyPatch, losses: dict[str, list[float]], steps: list[int]) -> BudgetCurves:
    """Curves of made-up means, each with the same noise of four seeds."""
    noise = np.array([-0.01, 0.0, 0.0, 0.01])
    made = BudgetCurves(Path(), tuple(range(len(steps))))  # type: ignore[arg-type]
    monkeypatch.setattr(BudgetCurves, "steps", steps)
    monkeypatch.setattr(BudgetCurves, "arms", list(losses))
    wiggle = {arm: (place + 1) * noise for place, arm in enumerate(losses)}
    monkeypatch.setattr(BudgetCurves, "_values", lambda _, place, arm: (losses[arm][place] + wiggle[arm]).tolist())
    return made


def test_a_crossing_is_found_between_two_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    made = curves(monkeypatch, {"fast": [2.0, 1.8, 1.7], "slow": [2.4, 1.9, 1.5]}, [10, 100, 1000])
    (crossing,) = made.crossings
    assert (crossing.first, crossing.second, crossing.between) == ("fast", "slow", (100, 1000))
    assert crossing.steps == pytest.approx(100 * 10 ** (1 / 3)) and crossing.settled
    sentence = "fast is lower than slow at 100 steps and higher at 1,000: they cross at about 220 steps."
    assert made.sentences == [sentence]


def test_curves_that_do_not_cross_are_told_so_and_chance_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    apart = curves(monkeypatch, {"a": [2.0, 1.8], "b": [2.4, 1.9]}, [10, 1000])
    assert apart.sentences == ["No curves cross between 10 and 1,000 steps."]
    near = curves(monkeypatch, {"a": [2.0, 1.801], "b": [2.001, 1.8]}, [10, 100])
    assert [one.settled for one in near.crossings] == [False] and near.sentences[0].endswith(", if not by chance.")


def test_every_budget_is_a_study_with_a_schedule_of_its_own(tmp_path: Path) -> None:
    results = tiny(tmp_path, "study.budgets=[2, 4]", "study.seeds=1")
    assert results.curves is not None and results.curves.steps == [2, 4] and results.path == tmp_path / "study"
    runs = [Run(tmp_path / "study" / f"steps-{steps}" / "lstm" / "seed-0") for steps in (2, 4)]
    assert [run.recipe.train.steps for run in runs] == [2, 4]
    assert results.verdict.startswith("After 4 steps: A look, not a verdict") and "cross" in results.verdict
    again = results_of(tmp_path / "study")
    assert again.to_dict() == results.to_dict() and len(again.to_dict()["budgets"]["losses"]["lstm"]) == 2
    page, text = study_html(results), study_markdown(results)
    assert "Loss by budget" in page and "<th>2 steps</th>" in page and "## Several budgets" in text
    assert write_study_report(results) == tmp_path / "study" / "report.html"
    assert "- After 2 steps: A look, not a verdict" in text
    shutil.rmtree(tmp_path / "study" / "steps-4" / "lstm")
    in_part = results_of(tmp_path / "study")
    assert in_part.verdict.startswith("After 2 steps: A look") and "1 of 4 runs not finished" in in_part.verdict
    assert in_part.to_dict()["budgets"]["steps"] == [2, 4] and "- After 4 steps: A look" in study_markdown(in_part)
    shutil.rmtree(tmp_path / "study" / "steps-4" / "transformer")
    begun = results_of(tmp_path / "study")
    assert begun.verdict.startswith("After 2 steps: A look, not a verdict") and "cross" not in begun.verdict
    assert "2 of 4 runs not finished" in begun.verdict and begun.to_dict()["budgets"]["steps"] == [2]


@pytest.mark.slow  # that of one budget is in the fast suite: test_a_best_rate_at_the_edge...
def test_a_learning_rate_at_the_edge_is_named_for_every_budget(tmp_path: Path) -> None:
    tuning = ("study.tuning.trials=2", "study.tuning.ratio=2", "study.tuning.extra=0", "optimizer.lr=1e-7")
    results = tiny(tmp_path, "study.budgets=[2, 4]", "study.seeds=1", *tuning)
    for where in ("", " at 2 steps"):
        assert f"The best learning rate of transformer{where}, " in results.verdict
    assert results.verdict.count("that was tried: a ") == 4  # two arms, two budgets


def test_budgets_must_increase() -> None:
    with pytest.raises(SpecError, match=r"budgets: \[3, 2\] must increase. Use \[2, 3\]"):
        read_study("small", ["study.budgets=[3, 2]"])
