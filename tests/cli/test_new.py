"""`anyformer new`: a recipe that explains itself, means what it says, and trains as it is."""

import errno
import json
import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest
from tests.cli.shipped import RECIPES
from tests.training.small import LAYER

from anyformer.cli.main import main
from anyformer.cli.output.recipe_text import TASKS, compose
from anyformer.cli.verbs import new
from anyformer.core import decode
from anyformer.core.fields import field_help, leaves
from anyformer.data.record import SourceSpec
from anyformer.run import Run
from anyformer.training import Recipe
from anyformer.training.recipes.recipe import LogSpec, TrainSpec

Capture = pytest.CaptureFixture[str]
QUICK = (
    "train.steps=1", "train.batch_tokens=256", "data.context=64", "evaluate.batches=1", "sample.tokens=2",
    "data.tokenizer.kind=byte",
)  # fmt: skip


def test_the_tasks_that_are_offered_are_those_that_there_are() -> None:
    assert list(get_args(new.Task)) == list(TASKS)


@pytest.mark.parametrize("task", TASKS)
def test_what_is_commented_out_is_the_default(task: str) -> None:
    text = compose("mine", TASKS[task], "mine/recipe.toml")
    own = text.partition("# For your own data")
    rest = own[0] + own[2].partition("\n\n")[2]  # without the example of other data
    spoken = re.sub(r"(?m)^#(\w+ = )", r"\1", rest)
    said = {key: value for key, value in leaves(tomllib.loads(text)) if not key.startswith("data.source")}
    for key, value in leaves(tomllib.loads(spoken)):
        assert key.startswith("data.source") or said.get(key, value) == value
    tables = {name: table for name, table in tomllib.loads(spoken).items() if name in ("train", "log", "sample")}
    decode(TrainSpec, tables["train"])
    assert decode(LogSpec, tables["log"]) == LogSpec()


def test_every_key_has_the_help_of_its_field() -> None:
    text = " ".join(compose("mine", TASKS["language-model"], "mine/recipe.toml").replace("\n# ", " ").split())
    for cls in (TrainSpec, LogSpec):
        for field in fields(cls):
            assert " ".join(field_help(cls)[field.name].split()) in text


@pytest.mark.parametrize("task", TASKS)
def test_the_example_of_own_data_is_a_source(task: str) -> None:
    decode(SourceSpec, dict(TASKS[task].user_source))


SLOW = ("classification", "summaries", "translation")
"""Tasks whose embedded data take seconds to read."""


@pytest.mark.parametrize(
    "task", [pytest.param(task, marks=pytest.mark.slow) if task in SLOW else task for task in TASKS]
)
def test_it_trains_as_it_is(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert main(["new", "mine", "--task", task]) == 0
    assert "anyformer train mine/recipe.toml" in capsys.readouterr().out
    model = tomllib.loads(Path("mine/recipe.toml").read_text())["model"]
    halves = [f"model.{half}" for half in ("encoder", "decoder") if half in model] or ["model"]
    size = [f"{half}{key}" for half in halves for key in (".dim=16", ".stack.depth=1")]
    heads = [LAYER.replace("model", half, 1) + ".0.part.heads=2" for half in halves]
    heads += ["model.decoder.stack.blocks.layer.branches.1.part.part.heads=2"] if len(halves) == 2 else []
    assert main(["train", "mine/recipe.toml", *QUICK, *size, *heads, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["step"] == 1
    run = Run.open("runs/mine")
    assert run.recipe.name == "mine" and (run.folder / "report.html").is_file()
    assert (run.folder / "samples").is_dir() == run.recipe.model.decodes


def test_a_name_with_a_space_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "my diary"]) == 0
    assert "train 'my diary/recipe.toml'" in capsys.readouterr().out
    assert "--out 'runs/my diary-short'" in (tmp_path / "my diary" / "recipe.toml").read_text()


def test_a_folder_that_exists_is_left_alone(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "mine").mkdir()
    assert main(["new", str(tmp_path / "mine")]) == 2
    assert "exists already" in capsys.readouterr().err
    assert not any((tmp_path / "mine").iterdir())


def test_a_full_disk_leaves_no_folder(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    assert main(["new", str(tmp_path / "mine")]) == 2
    assert "No space left" in capsys.readouterr().err and not any(tmp_path.iterdir())


def test_a_mistyped_task_is_answered_with_all_tasks(capsys: Capture) -> None:
    assert main(["new", "mine", "--task", "clasification"]) == 2
    assert "Invalid value for '--task': 'clasification' is not one of 'language-model'" in capsys.readouterr().err


def test_every_verb_says_that_the_recipe_was_not_trained_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "my diary"]) == 0
    verbs = (["generate", "my diary", "x"], ["train", "my diary", "--resume"], ["report", "my diary"])
    for words in (*verbs, ["train", "small", "init_from=my diary"]):
        assert main(words) == 2
        advice = "it holds a recipe, and no run of it. Train it first: anyformer train 'my diary/recipe.toml'"
        assert advice in capsys.readouterr().err
    assert main(["train", "my diary"]) == 3
    assert "the folder of a recipe, not of data. Name its recipe instead: 'my diary/" in capsys.readouterr().err


@pytest.mark.parametrize("target", ["empty", "emty", "nowhere", "runs/nowhere"])
def test_there_is_no_run_to_resume_in_a_folder_without_one(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert main(["train", target, "--resume"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{target}: is no run to resume" in line and line.endswith("All runs: anyformer runs")
    assert ("Did you mean 'empty'?" in line) == (target == "emty")
    assert [item.name for item in tmp_path.iterdir()] == ["empty"]


@pytest.mark.parametrize("name", ["..", "a\nb", ""])
def test_what_is_no_name_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", name]) == 2
    assert not any(tmp_path.iterdir())


@pytest.mark.slow  # test_config.py checks each of them, test_recipes.py trains it on small files
def test_the_recipes_of_the_repository_hold_together(capsys: Capture) -> None:
    assert len(RECIPES) >= 4
    for file in RECIPES:
        assert main(["train", str(file), "--dry-run", "--json"]) == 0
        decode(Recipe, json.loads(capsys.readouterr().out)["recipe"])
