"""A model that came from elsewhere is a teacher like any other run."""

from pathlib import Path
from types import ModuleType

import pytest
import torch
from tests.exporting import runs

import anyformer
from anyformer import Run
from anyformer.training.runs import checkpoint

SHORT = [
    "train.steps=20", "train.batch_tokens=256", "evaluate.every=0", "log.every=10", "optimizer.lr=1e-2",
    "sample.tokens=1",
]  # fmt: skip
NEXT_TOKEN = ["objective.kind=distillation", 'objective.objective={kind="next_token"}', "objective.alpha=1.0"]


def imported(run: Run, folder: Path) -> Run:
    """The run as a Hugging Face folder, read again."""
    return anyformer.from_pretrained(anyformer.export(run, "hf", folder / "hf"), folder / "imported")


def test_a_student_learns_from_an_imported_language_model(transformers: ModuleType, tmp_path: Path) -> None:
    teacher = imported(runs.language_model(tmp_path), tmp_path)
    sizes = ["model.dim=16", "model.stack.depth=1", "model.stack.blocks.layer.branches.0.part.heads=2"]
    student = anyformer.train(
        str(tmp_path / "notes.txt"), *SHORT, *sizes, *NEXT_TOKEN, "data.context=32",
        f"objective.teacher={teacher.folder}", 'objective.matches=["hidden"]', out=tmp_path / "student",
    )  # fmt: skip
    stored = checkpoint.read(student.checkpoint("last"), only=("teacher",))["teacher"]
    weights = teacher.model().state_dict()
    assert stored.keys() == weights.keys() and all(torch.equal(stored[name], weights[name]) for name in weights)
    first, *_, last = (line["terms"] for line in student.metrics() if "terms" in line)
    assert last["teacher"] < first["teacher"] and last["hidden"] < first["hidden"]
    assert student.tokenizer.fingerprint() == teacher.tokenizer.fingerprint()
    assert student.generate(["the fox"])


@pytest.mark.slow  # a language model as the teacher is in the fast suite
def test_a_student_learns_from_an_imported_classifier(transformers: ModuleType, tmp_path: Path) -> None:
    teacher = imported(runs.classifier(tmp_path), tmp_path)
    student = anyformer.train(
        str(tmp_path / "labels.tsv"), *SHORT, "model.preset=small-encoder", "model.dim=16", "model.stack.depth=1",
        "data.context=32", "data.source.label=label", "objective.kind=distillation",
        f"objective.teacher={teacher.folder}", 'objective.objective={kind="classify", classes=2}',
        out=tmp_path / "student",
    )  # fmt: skip
    assert student.classify(["the red fox"])[0].label in ("yes", "no")
