"""Distillation through `train`: the teacher is a run, and comes with its weights."""

from pathlib import Path

import pytest
import torch
from tests.evaluation.runs import ONE, file
from tests.training.small import LAYER, TINY, facts, tiny
from tests.training.test_early_stopping import Listening
from tests.training.test_extending import same

from anyformer.errors import AnyformerError, SpecError
from anyformer.inference.text_generator import GenerationConfig
from anyformer.objectives.matches.match import Projections
from anyformer.run import Run, train
from anyformer.training import Session, Watcher
from anyformer.training.runs import checkpoint

KIND = ("objective.kind=distillation", 'objective.objective={kind="next_token"}')
MATCHES = (*KIND, 'objective.matches=["hidden", "attention"]')
FEW = GenerationConfig(max_new=2)
SETTINGS = (*ONE, "model.preset=small", "train.batch_tokens=128")


class Models(Watcher):
    """Keeps the models of a run as they are before the first step."""

    def began(self, session: Session) -> None:
        teacher = session.trainer.models["teacher"]
        self.weights = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
        self.frozen = not any(parameter.requires_grad for parameter in teacher.parameters())


def student(folder: Path, teacher: Path, watcher: Watcher, *more: str) -> Run:
    settings = [setting for setting in SETTINGS if "tokenizer" not in setting]  # the teacher's
    wanted = (*settings, *KIND, f"objective.teacher={teacher}", "train.steps=3", *more)
    return train(file("texts"), *wanted, out=folder / "student", cache=folder / "cache", watcher=watcher)


def test_a_student_learns_from_the_weights_of_the_run(tmp_path: Path) -> None:
    teacher = train(file("texts"), *SETTINGS, "train.steps=6", out=tmp_path / "teacher", cache=tmp_path / "cache")
    models = Models()
    run = student(tmp_path, teacher.folder, models)
    assert models.frozen
    for name, tensor in teacher.model().state_dict().items():
        assert torch.equal(models.weights[name], tensor), name
    (tmp_path / "teacher").rename(tmp_path / "gone")  # a student needs no teacher any more
    with pytest.warns(UserWarning, match="not compared with the training data"):  # their tokenizer is gone too
        assert run.generate(["the cat"], FEW) and run.evaluate(file("texts"), limit=4)["loss"].value > 0


def test_a_teacher_must_be_a_run_with_the_same_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(AnyformerError, match="nowhere: no such file or folder"):
        student(tmp_path, tmp_path / "nowhere", Watcher())
    teacher = train(file("texts"), *SETTINGS, "train.steps=1", out=tmp_path / "teacher", cache=tmp_path / "cache")
    with pytest.raises(AnyformerError, match="teacher has another tokenizer than these data"):
        student(tmp_path, teacher.folder, Watcher(), "data.tokenizer.kind=character")


def test_a_projection_between_widths_is_trained_and_resumed_exactly_but_is_not_served(tmp_path: Path) -> None:
    teacher = tiny(tmp_path, "teacher", "model.dim=24", "model.stack.depth=3", "train.steps=1")
    recipe = (*MATCHES, f"objective.teacher={teacher.folder}", "train.steps=4")
    straight = tiny(tmp_path, "straight", *recipe)
    with pytest.raises(RuntimeError, match="crash"):
        train(
            str(tmp_path / "sentences.txt"), *TINY, *recipe, out=tmp_path / "crashed", cache=tmp_path / "cache",
            watcher=Listening(crash=3),
        )  # fmt: skip
    resumed = tiny(tmp_path, "crashed", resume=True)
    assert same(resumed, straight) and facts(resumed) == facts(straight)
    assert {"words", "teacher", "hidden", "attention"} <= {*facts(straight)[1]["terms"]}
    first, last, again = (
        checkpoint.read(run.checkpoint(step), only=("projections",))["projections"]["matrices.hidden/0.weight"]
        for run, step in ((straight, 2), (straight, 4), (resumed, 4))
    )
    assert last.shape == (24, 16) and torch.equal(last, again) and not torch.equal(first, last)
    assert not any(isinstance(module, Projections) for module in straight.model().modules())
    (tmp_path / "teacher").rename(tmp_path / "gone")
    assert straight.generate(["the cat"], FEW) and {*straight.trained().models} == {"model"}


@pytest.mark.parametrize(
    ("setting", "says"),
    [("train.compile=true", "train.compile=True: distillation compares"), ('train.recompute="blocks"', "recompute")],
)
def test_layers_that_are_compared_are_not_compiled_or_recomputed(setting: str, says: str, tmp_path: Path) -> None:
    teacher = tiny(tmp_path, "teacher", "train.steps=1")
    with pytest.raises(SpecError, match=says):
        tiny(tmp_path, "student", *MATCHES, f"objective.teacher={teacher.folder}", setting)
    assert not (tmp_path / "student").exists()


def test_a_teacher_without_attention_is_refused_before_training(tmp_path: Path) -> None:
    mixer = f"{LAYER}.0.part.kind=gru"
    teacher = train(
        file("texts"), *SETTINGS, mixer, "train.steps=1", out=tmp_path / "teacher", cache=tmp_path / "cache"
    )
    with pytest.raises(SpecError, match=r"matches\[0\]: attention: no layer of the teacher has any"):
        student(tmp_path, teacher.folder, Watcher(), 'objective.matches=["attention"]')
    assert not (tmp_path / "student").exists()
