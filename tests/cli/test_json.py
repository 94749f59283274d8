"""`--json`: what every verb prints is JSON, and docs/formats.md has its keys."""

import json
import math
import re
from pathlib import Path

import pytest
from tests.evaluation.runs import run_of

from anyformer.cli.main import Verbs, main
from anyformer.cli.output.screen import Screen

Capture = pytest.CaptureFixture[str]
PAGE = (Path(__file__).parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## What `--json` prints")[2]


def test_every_verb_is_documented() -> None:
    assert [verb for verb in Verbs() if not re.search(rf"`{verb}\b", SECTION)] == []


def test_numbers_that_are_not_finite_are_null(capsys: Capture) -> None:
    Screen().record({"loss": math.nan, "all": [1.5, (math.inf, "x")]})
    assert json.loads(capsys.readouterr().out) == {"loss": None, "all": [1.5, [None, "x"]]}


@pytest.mark.parametrize(
    "words",
    [["doctor"], ["view", "RUN", "the cat"], ["chat", "RUN", "hello", "--max-new", "2"], ["cost", "small"]],
    ids=lambda words: words[0],
)
def test_the_keys_are_those_of_the_page(words: list[str], capsys: Capture) -> None:
    folder = str(run_of("language").folder)
    assert main([folder if word == "RUN" else word for word in words] + ["--json"]) == 0
    keys = json.loads(capsys.readouterr().out)
    assert [key for key in keys if f"`{key}`" not in SECTION] == []


def test_a_curve_of_pruning_with_a_picture_prints_json_alone(tmp_path: Path, capsys: Capture) -> None:
    words = ["shrink", str(run_of("language").folder), "--prune", "weights=0.5,0.9", "--limit", "2"]
    assert main([*words, "--out", str(tmp_path / "x.svg"), "--json"]) == 0
    points = json.loads(capsys.readouterr().out)
    assert points[0].keys() == {"by", "share", "params", "scores"} and (tmp_path / "x.svg").exists()
