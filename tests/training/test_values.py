"""Training from Python values: a model, a recipe, sections and data, with nothing written to a file first."""

from pathlib import Path

import pytest
import torch
from tests.training.small import TINY, text

from anyformer.core import Frame
from anyformer.data.preparation.pipeline import DataSpec
from anyformer.data.sources.text import Text
from anyformer.data.tokenizers.byte import Byte
from anyformer.errors import SpecError
from anyformer.models import Block, Branch, Decoder, Stack
from anyformer.optim.muon import Muon
from anyformer.parts.mixers.attention import Attention
from anyformer.run import train
from anyformer.training import Recipe, Trainer
from anyformer.training.recipes.recipe import TrainSpec

LAYER = Block(branches=(Branch(part=Attention(heads=2)),))
MODEL = Decoder(dim=16, stack=Stack(blocks={"layer": LAYER}, depth=1))
QUICK = tuple(
    key for key in TINY if key.startswith(("data.", "train.b", "train.m", "evaluate", "checkpoint", "sample"))
)


def test_a_model_is_trained_on_a_path_and_takes_its_vocabulary_from_it(tmp_path: Path) -> None:
    run = train(MODEL, *QUICK, data=text(tmp_path), steps=2, out=tmp_path / "run", cache=tmp_path / "cache")
    assert run.recipe.model == MODEL.with_("vocab", run.tokenizer.words.size)
    assert run.recipe.train.steps == 2 and run.complete


def test_data_take_a_model_and_an_optimizer_as_sections(tmp_path: Path) -> None:
    muon = Muon(lr=2e-3)
    run = train(
        text(tmp_path), *QUICK, model=MODEL, optimizer=muon, steps=1, out=tmp_path / "run", cache=tmp_path / "c"
    )
    assert run.recipe.optimizer == muon and isinstance(run.recipe.model, Decoder)
    assert run.recipe.model.stack == MODEL.stack


def test_a_recipe_value_needs_no_file(tmp_path: Path) -> None:
    data = DataSpec(source=Text(path=text(tmp_path)), tokenizer=Byte(), context=32, valid=0.2)
    recipe = Recipe(model=MODEL, data=data, train=TrainSpec(steps=2, batch_tokens=256), name="mine")
    run = train(recipe, out=tmp_path / "run", cache=tmp_path / "cache")
    assert run.recipe.data == data and run.recipe.name == "mine"
    with pytest.raises(SpecError, match="already"):
        train(text(tmp_path), data=text(tmp_path))


def test_a_trainer_prepares_the_data_of_its_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    data = DataSpec(source=Text(path=text(tmp_path)), tokenizer=Byte(), context=32, valid=0.2)
    trainer = Trainer(Recipe(model=MODEL, data=data, train=TrainSpec(steps=1, batch_tokens=256)))
    assert [step.status for step in trainer.steps()] == ["applied"]
    assert trainer.recipe.objective is not None and trainer.recipe.objective.kind == "next_token"


def test_strings_override_values_and_an_unknown_section_is_named(tmp_path: Path) -> None:
    run = train(MODEL, *QUICK, "train.steps=1", data=text(tmp_path), steps=9, out=tmp_path / "r", cache=tmp_path / "c")
    assert run.recipe.train.steps == 1
    with pytest.raises(SpecError, match="optimiser: a recipe has no such section"):
        train(MODEL, data=text(tmp_path), optimiser=Muon())  # type: ignore[call-arg]


def test_a_model_without_a_vocabulary_says_what_to_do() -> None:
    with pytest.raises(SpecError, match=r"vocab: is not set.*with_"):
        MODEL.build()
    assert MODEL.with_("vocab", 9).build()(torch.tensor([[1, 2]]), Frame()).y.shape == (1, 2, 9)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device is available here")
def test_a_trainer_takes_the_device_that_its_recipe_names(tmp_path: Path) -> None:
    """A study that matches arms by time measures the device of the runs, not the CPU."""
    data = DataSpec(source=Text(path=text(tmp_path)), tokenizer=Byte(), context=32, valid=0.2)
    with pytest.raises(SpecError, match="cuda"):
        Trainer(Recipe(model=MODEL, data=data, train=TrainSpec(steps=1, batch_tokens=256, device="cuda")))
