"""Every recipe runs: on a user's own small files in a second, on its embedded default in the slow suite."""

import json
from pathlib import Path

import pytest
from tests.cli.shipped import FOLDER, RECIPES
from tests.evaluation.runs import file

from anyformer.run import Run, train

NAMES = [file.stem for file in RECIPES]
OWN = {
    "language-model": "texts", "masked-words": "texts", "span-corruption": "texts", "word2vec": "texts",
    "classification": "classes", "classification-attention": "classes", "classification-fine-tuned": "classes",
    "token-labels": "tags", "speedrun-10m": "texts", "speedrun-35m": "texts",
}  # fmt: skip
FIELDS = {"classes": {"label": "label"}, "tags": {"tags": "tags"}, "pairs": {"target": "target"}, "texts": {}}


def two_steps(name: str, home: Path, *overrides: str) -> Run:
    """A recipe, made small."""
    recipe = FOLDER / f"{name}.toml"
    sides = ("model.encoder", "model.decoder") if "encoder-decoder" in recipe.read_text() else ("model",)
    small = [f"{side}.{key}" for side in sides for key in ("dim=32", "stack.depth=1")]
    if name == "word2vec":
        small = ["model.dim=32"]
    budget = "train.tokens=512" if name == "language-model" else "train.steps=2"
    settings = (*small, budget, "train.batch_tokens=256", "data.context=32", "data.valid=0.2", "sample.tokens=2")
    return train(recipe, *settings, "evaluate.batches=1", *overrides, out=home / "runs" / name, cache=home / "cache")


def starts(name: str, home: Path, *overrides: str) -> None:
    """The run that a recipe starts from."""
    lines = (FOLDER / f"{name}.toml").read_text().splitlines()
    start = next((line.split("/")[-1].strip('"') for line in lines if line.startswith("init_from")), None)
    if start:
        two_steps(start, home, *overrides)


def own(kind: str) -> list[str]:
    fields = [f"data.source.{slot}={name}" for slot, name in FIELDS[kind].items()]
    return ["data.source.kind=jsonl", f"data.source.path={file(kind)}", *fields]


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_runs_on_files_of_ones_own_by_changing_a_path(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    starts(name, tmp_path, *own("texts"))
    run = two_steps(name, tmp_path, *own(OWN.get(name, "pairs")))
    assert run.complete and json.loads((run.folder / "environment.json").read_text())["data"]["splits"]["valid"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_runs_on_its_embedded_default(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    starts(name, tmp_path)
    assert two_steps(name, tmp_path).complete
