"""What a study registers before its first run, and the time and the tokens that its page states."""

import json
from pathlib import Path

import pytest
from tests.study.small import tiny

from anyformer.reporting.study_report import study_html, study_markdown
from anyformer.study.comparing import Listener
from anyformer.study.study_folder import StudyFolder
from anyformer.study.study_record import REGISTERED, SESSIONS, registration_of, seconds_spent, timed_session


class Planned(Listener):
    """Notes what is on the disk before the first run."""

    def planned(self, folder: StudyFolder) -> None:
        self.registration = registration_of(folder.path)
        self.runs = list(folder.path.glob("*/seed-*"))


def test_a_study_is_registered_before_its_first_run(tmp_path: Path) -> None:
    planned = Planned()
    results = tiny(tmp_path, listener=planned)
    assert planned.registration is not None and not planned.runs
    assert planned.registration.study == results.folder.document
    assert f"Registered on {planned.registration.at:%d %B %Y}" in study_markdown(results)


def test_the_page_names_what_was_changed_after_registration(tmp_path: Path) -> None:
    tiny(tmp_path)
    before = (tmp_path / "study" / REGISTERED).read_text()
    results = tiny(tmp_path, "study.seeds=3")
    assert (tmp_path / "study" / REGISTERED).read_text() == before
    for page in (study_markdown(results), study_html(results)):
        assert "Changed later: study.seeds, from 2 to 3." in page


def test_a_study_without_a_registration_says_nothing_about_it(tmp_path: Path) -> None:
    results = tiny(tmp_path)
    (tmp_path / "study" / REGISTERED).unlink()
    assert "Registered" not in study_markdown(results)


def test_the_page_states_tokens_epochs_and_time(tmp_path: Path) -> None:
    results = tiny(tmp_path)
    unique = json.loads((results.folder.run("lstm", 0) / "environment.json").read_text())["data"]["splits"]["train"]
    page = study_markdown(results)
    run = results.arms[0].runs[0]
    assert f"epochs: {run.tokens / unique['tokens']:.2g}" in page
    assert "of trials, controls and runs on cpu" in page


def test_time_is_counted_over_all_sessions_in_which_runs_were_trained(tmp_path: Path) -> None:
    controlled = ("study.controls.same={alike=['transformer','lstm'],within=9.0}",)
    results = tiny(tmp_path, *controlled)
    files = sorted(file.relative_to(results.path) for file in results.path.rglob(SESSIONS))
    assert files == [Path("controls/same") / SESSIONS, Path(SESSIONS)]
    once = seconds_spent(results.path)
    tiny(tmp_path, *controlled)  # everything is finished
    assert seconds_spent(results.path) == once > 0.0


def test_an_interrupted_session_counts_too(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), timed_session(tmp_path, jobs=2):
        raise KeyboardInterrupt
    assert json.loads((tmp_path / SESSIONS).read_text())["jobs"] == 2
