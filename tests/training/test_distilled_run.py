"""Distillation through `train`: the teacher is a run, and comes with its weights."""

from pathlib import Path

import pytest
import torch
from tests.evaluation.runs import ONE, file

from anyformer.errors import AnyformerError
from anyformer.run import Run, train
from anyformer.training import Session, Watcher

SETTINGS = (*ONE, "model.preset=small", "train.batch_tokens=128")


class Models(Watcher):
    """Keeps the models of a run as they are before the first step."""

    def began(self, session: Session) -> None:
        teacher = session.trainer.models["teacher"]
        self.weights = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
        self.frozen = not any(parameter.requires_grad for parameter in teacher.parameters())


def student(folder: Path, teacher: Path, watcher: Watcher, *more: str) -> Run:
    objective = ("objective.kind=distillation", 'objective.objective={kind="next_token"}')
    settings = [setting for setting in SETTINGS if "tokenizer" not in setting]  # the teacher's
    wanted = (*settings, *objective, f"objective.teacher={teacher}", "train.steps=3", *more)
    return train(file("texts"), *wanted, out=folder / "student", cache=folder / "cache", watcher=watcher)


def test_a_student_learns_from_the_weights_of_the_run(tmp_path: Path) -> None:
    teacher = train(file("texts"), *SETTINGS, "train.steps=6", out=tmp_path / "teacher", cache=tmp_path / "cache")
    models = Models()
    run = student(tmp_path, teacher.folder, models)
    assert models.frozen
    for name, tensor in teacher.model().state_dict().items():
        assert torch.equal(models.weights[name], tensor), name
    (tmp_path / "teacher").rename(tmp_path / "gone")  # a student needs no teacher any more
    assert run.generate(["the cat"]) and run.evaluate(file("texts"), limit=4)["loss"].value > 0


def test_a_teacher_must_be_a_run_with_the_same_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(AnyformerError, match="nowhere: not a run folder"):
        student(tmp_path, tmp_path / "nowhere", Watcher())
    teacher = train(file("texts"), *SETTINGS, "train.steps=1", out=tmp_path / "teacher", cache=tmp_path / "cache")
    with pytest.raises(AnyformerError, match="teacher has another tokenizer than these data"):
        student(tmp_path, teacher.folder, Watcher(), "data.tokenizer.kind=character")
