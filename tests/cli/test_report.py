"""`anyformer report`: what it writes, what it prints, and what it refuses."""

import json
from pathlib import Path

import pytest
from tests.reporting.folders import make, whole

from anyformer.cli.main import main

Capture = pytest.CaptureFixture[str]


def test_the_page_is_written_into_the_run_and_its_place_is_said(tmp_path: Path, capsys: Capture) -> None:
    run = whole(tmp_path / "run")
    assert main(["report", str(run)]) == 0
    out = capsys.readouterr().out
    assert "validation loss 3.0000" in out and f"written: {run / 'report.html'}" in out
    assert (run / "report.html").read_text().startswith("<!doctype html>")


def test_as_json_it_is_strict_and_writes_no_page(tmp_path: Path, capsys: Capture) -> None:
    run = whole(tmp_path / "run")
    assert main(["report", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["valid_loss"] == 3.0 and found["curves"]["valid"][-1]["step"] == 40
    assert found["samples"][0]["step"] == 40 and not (run / "report.html").exists()


def test_markdown_by_its_ending(tmp_path: Path, capsys: Capture) -> None:
    run, out = whole(tmp_path / "run"), tmp_path / "page.md"
    assert main(["report", str(run), "--out", str(out), "--quiet"]) == 0
    assert capsys.readouterr().out.strip() == str(out)
    assert "| parameters |" in out.read_text()


@pytest.mark.parametrize("out", ["page.pdf", "run/recipe.toml/page.html"])
def test_a_place_that_cannot_be_is_refused_in_a_line(out: str, tmp_path: Path, capsys: Capture) -> None:
    run = make(tmp_path / "run", [])
    assert main(["report", str(run), "--out", str(tmp_path / out)]) == 2
    assert str(tmp_path / out) in capsys.readouterr().err


def test_what_is_no_run_is_refused(tmp_path: Path, capsys: Capture) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "not a run folder" in capsys.readouterr().err
