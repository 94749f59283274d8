"""Evaluation on other data: texts that the run was trained on are counted."""

import json
import random
import shutil
from pathlib import Path

import pytest
from tests.evaluation.runs import ONE, file, run_of

from anyformer.cli.main import main
from anyformer.data.record import Record
from anyformer.run import Run, train

Capture = pytest.CaptureFixture[str]


def trained_texts(run: Run) -> set[str]:
    return {record.text for record in run.records(split="train")}


def test_texts_of_training_are_counted() -> None:
    run = run_of("classes")
    records = list(run.records(file("classes")))
    count = sum(record.text in trained_texts(run) for record in records)
    assert 0 < count < len(records)
    warning = run.training_overlap(records)
    assert warning and warning.startswith(f"{count} of {len(records)} texts (")
    assert f"were in the training data of {run.folder}; scores on them are too good" in warning


def test_held_out_and_new_texts_are_not_reported() -> None:
    run = run_of("classes")
    assert run.training_overlap([*run.records(), Record("a text that nobody has seen before in this file")]) is None


def test_evaluate_warns_in_python_and_on_the_command_line(capsys: Capture) -> None:
    run = run_of("classes")
    with pytest.warns(UserWarning, match=r"were in the training data of .*classes"):
        run.evaluate(file("classes"), ["accuracy"], limit=20)
    assert main(["evaluate", str(run.folder), file("classes"), "--limit", "20", "--metric", "accuracy"]) == 0
    assert "scores on them are too good" in " ".join(capsys.readouterr().err.split())
    assert main(["evaluate", str(run.folder), "--limit", "20", "--metric", "accuracy"]) == 0
    assert "were in the training data" not in capsys.readouterr().err


def test_an_excerpt_of_a_long_text_is_recognised(tmp_path: Path) -> None:
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghij", k=6)) for _ in range(6_000)]
    (tmp_path / "a.txt").write_text(" ".join(words))
    run = train(str(tmp_path / "a.txt"), *ONE, "train.steps=1", out=tmp_path / "run", cache=tmp_path / "cache")
    warning = run.training_overlap([Record(" ".join(words[100:400]).upper())])
    assert warning and "letters in stretches of 48 or more" in warning and warning.endswith("are too good")


def test_training_data_that_changed_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    shutil.copy(file("classes"), path)
    run = train(str(path), *ONE, "train.steps=1", out=tmp_path / "run", cache=tmp_path / "cache")
    with path.open("a") as lines:
        lines.write("\n" + json.dumps({"text": "one more", "label": "land"}))
    assert "they have changed since" in (run.training_overlap([Record("the cat")]) or "")
    path.unlink()
    assert "a.jsonl" in (run.training_overlap([Record("the cat")]) or "")


def test_training_data_of_many_tokens_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of("classes")
    monkeypatch.setattr("anyformer.evaluation.training_overlap.MOST_COMPARED", 10)
    monkeypatch.setattr("anyformer.evaluation.training_overlap.look", lambda _: pytest.fail("reads the training data"))
    assert "which may have the same texts" in (run.training_overlap([Record("the cat")]) or "")
