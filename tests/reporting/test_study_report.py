"""The page of a study: the verdict first, nothing loaded, nothing that runs, and everything that is promised."""

import re
from pathlib import Path

import pytest
from tests.study.small import tiny

from anyformer.reporting.study_charts import front
from anyformer.reporting.study_report import study_html, study_markdown, write_study_report
from anyformer.study import Results

EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """A study with a run that failed, whose reason and prompt are not to be trusted."""
    home = tmp_path_factory.mktemp("home")
    found = tiny(home, f'sample.prompts=["{EVIL}"]', "train.steps=2")
    place = found.folder.run("lstm", 1)
    for item in sorted(place.rglob("*"), reverse=True):
        item.rmdir() if item.is_dir() else item.unlink()
    (place / "recipe.toml").write_text("")
    (place / "events.log").write_text(f'2026-01-01T00:00:00Z failed {{"why": "{EVIL}"}}\n')
    return Results(found.folder)


def test_the_verdict_stands_before_the_table_and_the_pictures(results: Results) -> None:
    page = study_html(results)
    places = [page.index(word) for word in ("A look, not a verdict", "<table", "<svg", "How to get it again")]
    assert places == sorted(places)


def test_all_that_is_promised_is_there(results: Results) -> None:
    page = study_html(results)
    charts = ("loss by steps", "loss by tokens", "loss by FLOP", "loss by seconds", "Pareto front")
    sections = ("What they say", "What was matched", "model.dim", "documents", "Environment", "Runs without a result")
    for words in (*charts, *sections, "study.toml --out"):
        assert words in page, words


def test_text_from_data_is_escaped_and_nothing_is_loaded(results: Results) -> None:
    page = study_html(results)
    assert EVIL not in page and "&lt;script&gt;" in page
    assert not re.search(r"<script|<link|<img|<iframe|@import|url\((?!#)|https?://(?!www\.w3\.org)", page)
    assert "default-src &#39;none&#39;" in page
    assert EVIL not in study_markdown(results).replace("`", "").split("## What they say")[0]


def test_a_page_markdown_and_json_lie_in_the_folder(results: Results) -> None:
    path = write_study_report(results)
    assert path.name == "report.html"
    assert {"report.html", "report.md", "report.json"} <= {item.name for item in Path(results.folder.path).iterdir()}


def test_the_front_holds_whom_nobody_beats_in_both() -> None:
    points = {"cheap": (1.0, 3.0), "worse": (2.0, 3.5), "good": (3.0, 2.0), "dear": (4.0, 2.0)}
    assert front(points) == ["cheap", "good"]
