"""The page of a study: the verdict first, nothing loaded, nothing that runs, and everything that is promised."""

import re
import shutil
from pathlib import Path

import pytest
from tests.reporting.browser import browser
from tests.study.small import tiny
from tests.training.small import text

from anyformer.reporting.study_charts import front
from anyformer.reporting.study_report import study_html, study_markdown, write_study_report
from anyformer.study import Results
from anyformer.study.study_folder import StudyFolder

EVIL = "<script>alert(1)</script>"
NAR_53 = ("params", "ops", "steps/s", "memory", "early loss", "valid loss", "test loss", "more perplexity")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """A study with a run that failed, whose reason and prompt are not to be trusted."""
    home = tmp_path_factory.mktemp("home")
    later = (f"data.source.path={text(home)}", "data.context=32", "train.steps=1", "metric=perplexity")
    task = [f"downstream.more.{word}" for word in later]
    found = tiny(home, f'sample.prompts=["{EVIL}"]', "train.steps=2", *task)
    place = found.folder.run("lstm", 1)
    for item in sorted(place.rglob("*"), reverse=True):
        item.rmdir() if item.is_dir() else item.unlink()
    (place / "recipe.toml").write_text("")
    (place / "events.log").write_text(f'2026-01-01T00:00:00Z failed {{"why": "{EVIL}"}}\n')
    return Results(found.folder)


@pytest.fixture(scope="module")
def page(results: Results) -> str:
    return study_html(results)


def test_the_verdict_stands_before_the_table_and_the_pictures(page: str) -> None:
    places = [page.index(word) for word in ("A look, not a verdict", "<table", "<svg", "How to reproduce it")]
    assert places == sorted(places)


@pytest.mark.row("NAR-53", clause="report has params, ops, step/s, early and final loss, downstream")
def test_all_that_is_promised_is_there(page: str) -> None:
    charts = ("loss by steps", "loss by tokens", "loss by FLOP", "loss by seconds", "Pareto front")
    sections = ("Samples", "Matched budget", "model.dim", "documents", "Environment", "Runs without a result")
    looks = ("What reaches what in transformer", "What reaches what in lstm", "What comes from farther away")
    columns = [f"<th>{name}</th>" for name in NAR_53]
    for words in (*charts, *sections, *looks, *columns, "study.toml --out"):
        assert words in page, words


def test_text_from_data_is_escaped_and_nothing_is_loaded(results: Results, page: str) -> None:
    assert EVIL not in page and "&lt;script&gt;" in page
    assert not re.search(r"<script|<link|<img|<iframe|@import|url\((?!#)|https?://(?!www\.w3\.org)", page)
    assert "default-src &#39;none&#39;" in page
    assert EVIL not in study_markdown(results).replace("`", "").split("## Samples")[0]


def test_a_browser_has_nothing_to_complain_about_at_any_width(page: str, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(page, encoding="utf-8")
    with browser(tmp_path / "profile") as tab:
        for width in (360, 1440):
            seen = tab.look(file, width)
            assert seen.console == [] and seen.requests == [file.as_uri()]
            assert seen.width <= width and EVIL in seen.text  # as text, on a page that does not scroll sideways
        assert tab.printed().startswith(b"%PDF")


def test_commands_in_the_verdict_are_code(results: Results, page: str) -> None:
    assert f"Run <code>anyformer compare {results.path} --seeds 8</code>." in page and "`" not in page


def test_a_page_markdown_and_json_lie_in_the_folder(results: Results) -> None:
    path = write_study_report(results)
    assert path.name == "report.html"
    assert {"report.html", "report.md", "report.json"} <= {item.name for item in Path(results.folder.path).iterdir()}


def test_the_page_states_one_distance_from_the_matched_budget(results: Results, page: str) -> None:
    off = f"{abs(results.arms[1].arm.off):.1%} (lstm)"
    assert f"to {off}" in page and f"Matched: the number of parameters, at most {off} from transformer." in page


def test_an_interrupted_study_is_finished_before_seeds_are_added(results: Results, tmp_path: Path) -> None:
    shutil.copytree(results.path, tmp_path / "study")
    shutil.rmtree(tmp_path / "study" / "transformer" / "seed-1")
    cut = Results(StudyFolder(tmp_path / "study"))
    go_on = f"anyformer compare {tmp_path / 'study'}"
    assert f"1 of 4 runs not finished: run `{go_on}`." in cut.verdict and "--seeds" not in cut.verdict
    page = study_html(cut)
    assert f"{go_on}</pre>" in page and "lstm seed 1" in page and "transformer seed 1" not in page


def test_the_front_holds_whom_nobody_beats_in_both() -> None:
    points = {"cheap": (1.0, 3.0), "worse": (2.0, 3.5), "good": (3.0, 2.0), "dear": (4.0, 2.0)}
    assert front(points) == ["cheap", "good"]
