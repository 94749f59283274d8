"""`anyformer shrink` with --quantise, --average and --distil, each in one command with its table."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.evaluation.runs import run_of
from tests.training.small import text, tiny

from anyformer.cli.main import main
from anyformer.objectives.distillation import Distillation
from anyformer.optim import average
from anyformer.run import Run
from anyformer.shrink.importance import Evidence
from anyformer.shrink.quantising import quantise
from anyformer.training.runs import checkpoint


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return tiny(tmp_path_factory.mktemp("runs"), "whole", "train.steps=6", "checkpoint.keep=4", "evaluate.every=4")


def table(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["shrink", *arguments, "--json", "--limit", "5"]) == 0
    return json.loads(capsys.readouterr().out)["table"]


@pytest.mark.parametrize("kind", ["int8", pytest.param("weights", marks=pytest.mark.slow)])
def test_quantise(kind: str, source: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = table(capsys, str(source.folder), "--quantise", kind, "--out", str(tmp_path / "int8"))
    before, after = rows["before"], rows["quantised"]
    assert before["params"] == after["params"] and before["flops_per_token"] == after["flops_per_token"]
    assert after["file_bytes"] < before["file_bytes"]
    assert main(["shrink", str(tmp_path / "int8"), "--prune", "heads=0.5", "--out", str(tmp_path / "no")]) == 2
    assert "quantised already" in capsys.readouterr().err


@pytest.mark.row("OPT-03", clause="averages the last k checkpoints, such as 5 or 20")
def test_average_of_checkpoints(source: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table(capsys, str(source.folder), "--average", "3", "--out", str(tmp_path / "mean"))
    files = [checkpoint.read(path, only=("model",))["model"] for path in source.checkpoints[:3]]
    mean = Run.open(tmp_path / "mean").model().state_dict()
    assert all(torch.equal(tensor, mean[name]) for name, tensor in average(files).items())
    assert main(["shrink", str(source.folder), "--average", "50", "--out", str(tmp_path / "no")]) == 2
    assert "checkpoint.keep=50" in capsys.readouterr().err


def test_average_of_runs(source: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tiny(source.folder.parent, "other", "train.steps=2", "seed=1")
    rows = table(capsys, str(source.folder), "--average", str(other.folder), "--out", str(tmp_path / "mean"))
    assert list(rows) == ["before", "other", "average"]
    models = [run.model().state_dict() for run in (source, other, Run.open(tmp_path / "mean"))]
    for name, tensor in models[2].items():
        torch.testing.assert_close(tensor, (models[0][name] + models[1][name]) / 2)
    narrow = tiny(source.folder.parent, "narrow", "train.steps=2", "model.dim=8")
    assert main(["shrink", str(source.folder), "--average", str(narrow.folder), "--out", str(tmp_path / "no")]) == 2
    assert "model.dim is 16" in capsys.readouterr().err and not (tmp_path / "no").exists()


def test_distil_in_one_command(source: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "student"
    student = ["--distil", "same", "--steps", "2", "model.stack.depth=1", "objective.temperature=3.0"]
    rows = table(capsys, str(source.folder), *student, "--out", str(out))
    assert list(rows) == ["teacher", "student", "student alone"]
    assert rows["student"]["params"] == rows["student alone"]["params"] < rows["teacher"]["params"]
    recipe = Run.open(out).recipe
    assert isinstance(recipe.objective, Distillation) and recipe.objective.temperature == 3.0
    assert recipe.objective.teacher == str(source.folder) and recipe.train.steps == 2


def test_a_student_is_ranked_with_the_projection_that_it_was_trained_with(
    source: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    student = ["--distil", "same", "--steps", "2", "--no-control", "model.dim=8", 'objective.matches=["hidden"]']
    table(capsys, str(source.folder), *student, "--out", str(tmp_path / "student"))
    run = Run.open(tmp_path / "student")
    stored = checkpoint.read(run.checkpoint(), only=("projections",))["projections"]
    evidence = Evidence(run, tmp_path / "cache")
    (batch,) = evidence.batches(1)
    projections = evidence._others["projections"].state_dict()
    assert stored and all(torch.equal(projections[name], tensor) for name, tensor in stored.items())
    assert evidence.loss(run.model(), batch).isfinite()


def test_distil_from_an_ensemble(source: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tiny(source.folder.parent, "another", "train.steps=2", "seed=1")
    teachers = f'objective.teacher=["{source.folder}", "{other.folder}"]'
    student = ["--distil", "same", "--steps", "2", "--no-control", "model.stack.depth=1", teachers]
    table(capsys, str(source.folder), *student, "--out", str(tmp_path / "student"))
    run = Run.open(tmp_path / "student")
    assert isinstance(run.recipe.objective, Distillation)
    assert run.recipe.objective.teacher == (str(source.folder), str(other.folder))
    files = checkpoint.read(run.checkpoint("last"), only=("teacher", "teacher_2"))
    for name, teacher in (("teacher", source), ("teacher_2", other)):
        weights = teacher.model().state_dict()
        assert all(torch.equal(tensor, weights[key]) for key, tensor in files[name].items())


def test_a_preset_is_a_student_with_the_vocabulary_of_its_teacher(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    halves = [f"model.{half}.{key}" for half in ("encoder", "decoder") for key in ("dim=16", "stack.depth=1")]
    student = ["--distil", "small-encoder-decoder", "--steps", "2", "--no-control", *halves]
    rows = table(capsys, str(run_of("pairs").folder), *student, "--out", str(tmp_path / "student"))
    assert list(rows) == ["teacher", "student"]
    assert main(["shrink", str(run_of("pairs").folder), "--distil", "small", "--out", str(tmp_path / "no")]) == 2
    assert "the same shape" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "no way to make it smaller"),
        (["--quantise", "int8", "--average", "2"], "Choose one of"),
        (["--quantise", "int8", "optimizer.lr=1"], "takes no settings"),
    ],
)
def test_a_command_that_is_not_clear_writes_nothing(
    arguments: list[str], says: str, source: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["shrink", str(source.folder), *arguments, "--out", str(tmp_path / "no")]) == 2
    assert says in capsys.readouterr().err and not (tmp_path / "no").exists()


@pytest.mark.parametrize("way", [("--prune", "heads=0.5"), ("--quantise", "int8"), ("--average", "2")])
def test_a_run_that_was_made_from_another_one_is_not_resumed(
    way: tuple[str, str], source: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "made")
    table(capsys, str(source.folder), *way, "--out", out)
    assert main(["train", out, "--resume", "train.steps=9"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"was made from {source.folder} without training, so there is no training to resume" in line
    if way[0] == "--quantise":
        assert line.endswith(f"cannot be trained: train {source.folder} instead.")
    else:  # the command of the advice works as it is
        words = shlex.split(line.partition(": anyformer ")[2])
        assert main([*words, "train.steps=2", "--quiet"]) == 0


@pytest.mark.parametrize("target", ["data", "small"])
def test_training_does_not_start_from_quantised_weights(
    target: str, source: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = quantise(source, tmp_path / "int8")
    target = text(source.folder.parent) if target == "data" else target
    assert main(["train", target, f"init_from={run.folder}", "--out", str(tmp_path / "no")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "'quantised' cannot be trained" in line and line.endswith(f"init_from={source.folder}")
    assert not (tmp_path / "no").exists()
