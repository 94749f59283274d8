"""What a study registers before its first run, and the time and the tokens that its page states."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.study.small import PAIR, TINY, tiny
from tests.training.small import text

from anyformer.cli.main import main
from anyformer.reporting.study_report import study_html, study_markdown
from anyformer.study import Results, compare
from anyformer.study.budget_curves import results_of
from anyformer.study.running import RunTask, run_task
from anyformer.study.study_folder import StudyFolder
from anyformer.study.study_listener import Listener
from anyformer.study.study_record import REGISTERED, SESSIONS, registration_of, seconds_spent, timed_session


class Planned(Listener):
    """Notes what is on the disk before the first run."""

    def planned(self, folders: Sequence[StudyFolder]) -> None:
        (folder,) = folders
        self.registration = registration_of(folder.path)
        self.runs = list(folder.path.glob("*/seed-*"))


@pytest.fixture(scope="module")
def planned() -> Planned:
    return Planned()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, planned: Planned) -> Results:
    """A finished study, which no test changes."""
    return tiny(tmp_path_factory.mktemp("home"), "study.seeds=1", listener=planned)


@pytest.fixture
def home(results: Results, tmp_path: Path) -> Path:
    """A copy of the home of the study, to be changed."""
    return shutil.copytree(results.path.parent, tmp_path / "home")


def test_a_study_is_registered_before_its_first_run(planned: Planned, results: Results) -> None:
    assert planned.registration is not None and not planned.runs
    assert planned.registration.study == results.folder.document
    assert f"Registered on {planned.registration.at:%d %B %Y}" in study_markdown(results)


def test_the_page_names_what_was_changed_after_registration(home: Path) -> None:
    before = (home / "study" / REGISTERED).read_text()
    results = compare(home / "study", "study.seeds=2", cache=home / "cache")
    assert (home / "study" / REGISTERED).read_text() == before
    for page in (study_markdown(results), study_html(results)):
        assert "Changed later: study.seeds, from 1 to 2." in page


def test_a_setting_that_is_newer_than_a_study_was_not_changed(home: Path) -> None:
    file = home / "study" / REGISTERED
    facts = json.loads(file.read_text())
    del facts["study"]["study"]["repeats"]
    file.write_text(json.dumps(facts))
    assert "Changed later" not in study_markdown(results_of(home / "study"))


def test_a_study_without_a_registration_says_nothing_about_it(home: Path) -> None:
    (home / "study" / REGISTERED).unlink()
    assert "Registered" not in study_markdown(results_of(home / "study"))


def test_the_page_states_tokens_epochs_and_time(results: Results) -> None:
    unique = json.loads((results.folder.run("lstm", 0) / "environment.json").read_text())["data"]["splits"]["train"]
    page = study_markdown(results)
    run = results.arms[0].runs[0]
    assert f"epochs: {run.tokens / unique['tokens']:.2g}" in page
    assert "of trials, controls and runs on cpu" in page


def test_time_is_counted_over_all_sessions_in_which_runs_were_trained(tmp_path: Path) -> None:
    controlled = ("study.controls.same={alike=['transformer','lstm'],within=9.0}",)
    results = tiny(tmp_path, *controlled, "study.seeds=1")
    assert len((results.path / SESSIONS).read_text().splitlines()) == 2, "the controls, and the arms"
    once = seconds_spent(results.path)
    tiny(tmp_path, *controlled, "study.seeds=1")  # everything is finished
    assert seconds_spent(results.path) == once > 0.0


def test_an_interrupted_session_counts_too(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), timed_session(tmp_path, jobs=2):
        raise KeyboardInterrupt
    assert json.loads((tmp_path / SESSIONS).read_text())["jobs"] == 2


def test_a_study_goes_on_from_another_working_directory(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(home)
    Path(text(home)).rename("notes.txt")
    words = [*TINY, PAIR, "study.tuning.trials=0"]
    first = compare("notes.txt", *words, "study.seeds=1", out="mine", cache=home / "cache")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert first.path == home / "mine" and "not finished" not in first.verdict
    before = (home / "mine" / "study.toml").read_text()
    results = compare("../home/mine", seeds=2, cache=home / "cache")
    assert [run.state for arm in results.arms for run in arm.runs] == ["complete"] * 4
    assert (home / "mine" / "study.toml").read_text() == before.replace("seeds = 1", "seeds = 2")
    task = RunTask(Path("../home/mine"), "lstm", 0.01, None, 1, home / "cache")
    assert not run_task(task).why and (home / "mine" / "tuning" / "lstm").is_dir()
    assert main(["compare", "../home/mine", "--seeds", "3", "--dry-run"]) == 0
    assert not list(Path().iterdir())
