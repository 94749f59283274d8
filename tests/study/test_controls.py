"""Controls: comparisons with a known outcome are trained first, shown first, and doubted if they fail."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.study.small import tiny

from anyformer.errors import SpecError
from anyformer.reporting.study_report import study_html, study_markdown
from anyformer.statistics.comparison import Difference
from anyformer.statistics.intervals import Interval
from anyformer.study.budget_curves import results_of
from anyformer.study.controls import Control, ControlOutcome, controls_sentence
from anyformer.study.study import read_study
from anyformer.study.study_folder import StudyFolder, is_of_controls
from anyformer.study.study_listener import Listener
from anyformer.study.workers import go_on

LOWER, TIE = Control(better="glu", than="relu"), Control(alike=("layer", "rms"))
FAR = Control(better="attention", than="lstm", by=0.5)


def measured(value: float, half: float, p: float | None = 0.01) -> Difference:
    interval = Interval(value, value - half, value + half)
    return Difference("arm", 8, 8, 0, interval, effect=None, p=p, needed=None)


@pytest.mark.parametrize(
    ("control", "difference", "passes"),
    [
        (LOWER, measured(-0.03, 0.01), True),
        (LOWER, measured(0.03, 0.01), False),
        (LOWER, measured(-0.03, 0.04, p=0.3), False),
        (LOWER, measured(-0.03, 0.01, p=None), False),
        (FAR, measured(-0.03, 0.01), False),
        (FAR, measured(-0.6, 0.2), False),
        (FAR, measured(-0.8, 0.2), True),
        (FAR, measured(0.8, 0.2), False),
        (TIE, measured(0.002, 0.01, p=0.7), True),
        (TIE, measured(0.015, 0.01, p=0.01), False),
        (TIE, measured(0.0, 0.05, p=0.9), False),
    ],
)
def test_a_control_passes_if_the_known_outcome_is_measured(
    control: Control, difference: Difference, passes: bool
) -> None:
    assert control.passes(difference) is passes


def test_the_size_of_a_known_difference_is_stated() -> None:
    assert FAR.expected == "attention has a lower loss than lstm by at least 0.5"


def test_a_failed_control_is_the_first_thing_that_a_verdict_says() -> None:
    outcomes = [
        ControlOutcome("gated", LOWER, measured(0.0, 0.01, p=0.9)),
        ControlOutcome("norms", TIE, measured(0.0, 0.01)),
    ]
    passed, failed, doubt = controls_sentence(outcomes)
    assert passed == "Controls passed: norms." and "cannot be trusted" in doubt
    assert failed.startswith(
        "Control gated failed: it is known that glu has a lower loss than relu, but here glu - relu = "
    )


@pytest.mark.parametrize(
    "words", ["{better='a'}", "{alike=['a']}", "{better='a', than='b', alike=['a', 'b']}", "{better='a', than='a'}"]
)
def test_a_control_names_two_arms(words: str) -> None:
    with pytest.raises(SpecError, match="two arms"):
        read_study("small", [f"study.controls.known={words}"])


class Noting(Listener):
    """Notes for which folder each group of runs was reported."""

    def __init__(self) -> None:
        self.folders, self.trained_in = list[Path](), list[list[Path]]()

    def planned(self, folders: Sequence[StudyFolder]) -> None:
        self.folders = [folder.path for folder in folders]

    def trained(self) -> None:
        self.trained_in.append(self.folders)


def test_controls_are_trained_first_and_shown_first(tmp_path: Path) -> None:
    words = ("study.controls.known={alike=['base', 'other'], within=9.0}", "arms.other.model.init={kind='xavier'}",
             "study.seeds=1", "train.steps=2")  # fmt: skip
    listener = Noting()
    results = tiny(tmp_path, *words, listener=listener)
    assert listener.trained_in == [[results.path / "controls" / "known"], [results.path]]
    assert [arm.name for arm in results.arms] == ["transformer", "lstm"], "an arm of a control is none of the study"
    (outcome,) = results.controls
    assert outcome.name == "known" and results.verdict.startswith("Control")
    runs = (results.path / "controls" / "known").glob("*/seed-*")
    expected = [f"{arm} seed-{seed}" for arm in ("base", "other") for seed in (0,)]
    assert sorted(f"{run.parent.name} {run.name}" for run in runs) == expected
    page, text = study_html(results), study_markdown(results)
    assert page.index("<h2>Controls</h2>") < page.index("<h2>The table</h2>") and "## Controls" in text
    again = results_of(tmp_path / "study")
    assert again.to_dict() == results.to_dict() and again.to_dict()["controls"][0]["name"] == "known"
    assert tiny(tmp_path, *words).to_dict() == results.to_dict(), "the same command reads the finished study"


def test_a_control_is_added_and_changed_under_another_name(tmp_path: Path) -> None:
    old = "study.controls.old={alike=['lstm', 'other'], within=9.0}"
    new = "study.controls.new={alike=['third', 'lstm'], within=9.0}"
    other, third = "arms.other.model.dropout=0.1", "arms.third.model.dropout=0.2"
    tiny(tmp_path, "study.seeds=1", "train.steps=1", old, other)
    results = tiny(tmp_path, "study.seeds=1", "train.steps=1", new, third)
    assert [one.name for one in results.controls] == ["new"]
    page = study_markdown(results)
    assert "- Removed later: control old." in page and "- Added later: control new." in page
    assert "Changed later" not in page
    for run in results.folder.control("new").glob("*/seed-*"):
        shutil.rmtree(run)
    assert "Control" not in results_of(results.path).verdict, "a control that has not been trained has not failed"
    with pytest.raises(SpecError, match="a study is resumed with its own settings"):
        tiny(tmp_path, "study.seeds=1", "train.steps=1", new.replace("third", "transformer"), "data.seed=7")


def test_settings_of_arms_of_controls_are_told_from_those_of_the_study() -> None:
    arms = ["base", "v1.5"]
    changed = ("arms.relu.dim", "arms.v1.6.dim", "arms.v1.5.dim", "arms.base.dim", "study.match")
    assert [is_of_controls(key, arms) for key in changed] == [True, True, False, False, False]


def test_a_control_may_have_another_tuning_but_no_other_jobs(tmp_path: Path) -> None:
    control = "study.controls.known={better='lstm', than='transformer', changes=['CHANGE']}"
    study = read_study("small", [control.replace("CHANGE", "study.tuning.trials=0"), "study.tuning.trials=3"])
    assert study.spec.tuning.trials == 3 and study.controls["known"].spec.tuning.trials == 0
    with pytest.raises(SpecError, match=r"'study.jobs=2' cannot differ for a control; of the study only"):
        read_study("small", [control.replace("CHANGE", "study.jobs=2")])


def test_controls_with_data_of_their_own_are_trained_together(tmp_path: Path) -> None:
    changes = ["data.source.kind=copy", "data.source.count=200", "data.context=16"]
    recall = f"{{better='transformer', than='lstm', changes={changes}}}"
    alike = "{alike=['other', 'lstm'], within=9.0}"
    words = (f"study.controls.recall={recall}", f"study.controls.plain={alike}", "arms.other.model.dropout=0.1")
    listener = Noting()
    results = tiny(tmp_path, *words, "study.seeds=1", "train.steps=1", listener=listener)
    assert listener.trained_in[0] == [results.folder.control(name) for name in ("recall", "plain")]
    recipes = {name: StudyFolder.open(results.folder.control(name)).arms[0].recipe.data for name in ("recall", "plain")}
    assert recipes["recall"].source.kind == "copy" and recipes["recall"].context == 16
    assert recipes["plain"] == results.folder.arms[0].recipe.data
    stored = read_study(results.path / "study.toml")
    assert stored.to_dict() == results.folder.document
    assert stored.controls["recall"].base.data["data"]["source"]["kind"] == "copy"


@pytest.mark.slow  # controls alone and budgets alone are in the fast suite
def test_of_several_budgets_the_largest_has_the_controls(tmp_path: Path) -> None:
    control = "study.controls.known={better='lstm', than='transformer'}"
    results = tiny(tmp_path, control, "study.budgets=[2, 4]", "study.seeds=1")
    control_folder = tmp_path / "study" / "steps-4" / "controls" / "known"
    for folder in (control_folder, control_folder.parents[1], tmp_path / "study"):
        assert (folder / "study.toml").is_file()
        assert (folder / "yardsticks.json").is_file() == (folder == control_folder.parents[1]), "controls have none"
        assert go_on(folder).endswith(f"compare {tmp_path / 'study'}"), "a stopped study is continued as a whole"
    assert not (tmp_path / "study" / "steps-2" / "controls").exists()
    first_run = control_folder / "transformer" / "seed-0" / "environment.json"
    smaller = tmp_path / "study" / "steps-2" / "transformer" / "seed-0" / "environment.json"
    assert first_run.stat().st_mtime_ns < smaller.stat().st_mtime_ns, "controls come before all budgets"
    assert results.verdict.startswith(
        "Control known failed: it is known that lstm has a lower loss than transformer, but here "
    )
