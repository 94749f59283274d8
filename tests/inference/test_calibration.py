"""Temperature scaling: probabilities of a classifier are as high as it is often right."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.evaluation.runs import run_of

from anyformer.inference.calibration import FARTHEST, best_temperature, calibrated
from anyformer.run import Run, train
from anyformer.training import Session, Watcher


def test_the_temperature_is_the_one_with_the_lowest_loss() -> None:
    rng = torch.Generator().manual_seed(0)
    scores = torch.randn(400, 3, generator=rng, dtype=torch.float64)
    labels = torch.multinomial((scores / 2.0).softmax(-1), 1, generator=rng)[:, 0]  # too sure by a factor of 2
    best = best_temperature(scores, labels)
    losses = {factor: F.cross_entropy(scores / (best * factor), labels) for factor in (0.97, 1.0, 1.03)}
    assert 1.5 < best < 2.7 and min(losses, key=lambda factor: losses[factor]) == 1.0


def test_scores_that_are_always_right_stay_finite() -> None:
    labels = torch.arange(60) % 2
    assert best_temperature(F.one_hot(labels).double(), labels) == pytest.approx(1 / FARTHEST)


def test_a_choice_that_does_not_exist_has_no_influence() -> None:
    scores, labels = torch.randn(80, 2, generator=torch.Generator().manual_seed(1)), torch.arange(80) % 2
    padded = F.pad(scores, (0, 1), value=-torch.inf)
    assert best_temperature(padded, labels) == pytest.approx(best_temperature(scores, labels))


def films(folder: Path) -> Path:
    """Texts with a label that some of them contradict."""
    words = {"good": ("fine", "great", "nice"), "bad": ("poor", "sad", "dull")}
    rows = [
        {"text": f"a {words[label][n % 3]} film {n}", "label": label if n % 5 else "bad", "split": split}
        for split, count in (("train", 120), ("valid", 60))
        for n in range(count)
        for label in words
    ]
    (file := folder / "films.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return file


def test_a_classifier_is_calibrated_after_training(tmp_path: Path) -> None:
    small = ("model.dim=32", "model.stack.depth=1", "train.batch_tokens=256", "optimizer.lr=1e-2", "train.steps=20",
             "evaluate.every=0", "checkpoint.every=0", "data.tokenizer.kind=word",
             "model.embedding.buckets=1024")  # fmt: skip
    run = train(str(films(tmp_path)), *small, out=tmp_path / "run", cache=tmp_path / "cache")
    stored = json.loads((run.folder / "calibration.json").read_text())
    assert stored["texts"] == 120 and stored["temperature"] != 1.0
    assert run.trained("cpu").temperature == stored["temperature"]
    before = run.evaluate()["loss"].value
    (run.folder / "calibration.json").unlink()
    assert before < Run(run.folder).evaluate()["loss"].value


class ChangeData(Watcher):
    """Changes the data while a run is in progress, and keeps the messages."""

    def __init__(self, file: Path) -> None:
        self.file, self.messages = file, list[str]()

    def began(self, session: Session) -> None:
        self.file.write_text(self.file.read_text().replace("film", "play"))

    def log(self, text: str) -> None:
        self.messages.append(text)


def test_a_run_whose_data_changed_meanwhile_ends_well_without_calibration(tmp_path: Path) -> None:
    watcher = ChangeData(films(tmp_path))
    small = (
        "model.dim=32",
        "model.stack.depth=1",
        "model.embedding.buckets=1024",
        "train.steps=3",
        "data.tokenizer.kind=word",
    )
    run = train(str(watcher.file), *small, out=tmp_path / "run", cache=tmp_path / "cache", watcher=watcher)
    assert run.complete and not (run.folder / "calibration.json").exists()
    assert "not calibrated" in watcher.messages[-1] and "data have changed" in watcher.messages[-1]


def test_other_models_are_not_calibrated() -> None:
    run = run_of("numbers")
    assert run.calibrate() is None and calibrated(run.trained("cpu"), run.records()) is None
    assert not (run.folder / "calibration.json").exists()
