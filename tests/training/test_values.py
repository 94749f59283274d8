"""Training from Python values: a model, a recipe, sections and data, with nothing written to a file first."""

import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.small import TINY, text

from anyformer.core import Frame, Spec
from anyformer.data.preparation.pipeline import DataSpec
from anyformer.data.sources.jsonl import JSONLines
from anyformer.data.sources.record_file import write_records
from anyformer.data.sources.text import Text
from anyformer.data.synthetic.copy import Copy
from anyformer.data.tokenizers.byte import Byte
from anyformer.errors import CheckpointError, DataError, SpecError
from anyformer.models import Block, Branch, Decoder, Stack
from anyformer.optim.muon import Muon
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.positions.rope import Rope
from anyformer.run import Run, train
from anyformer.study import compare
from anyformer.training import Recipe, Trainer, Watcher, load
from anyformer.training.recipes.recipe import TrainSpec
from anyformer.training.recipes.resolve import draft

LAYER = Block(branches=(Branch(part=Attention(heads=2)),))
MODEL = Decoder(dim=16, stack=Stack(blocks={"layer": LAYER}, depth=1))
QUICK = tuple(
    key for key in TINY if key.startswith(("data.", "train.b", "train.m", "evaluate", "checkpoint", "sample"))
)


def test_a_model_is_trained_on_a_path_and_takes_its_vocabulary_from_it(tmp_path: Path) -> None:
    run = train(MODEL, *QUICK, data=text(tmp_path), steps=2, out=tmp_path / "run", cache=tmp_path / "cache")
    assert run.recipe.model == MODEL.with_("vocab", run.tokenizer.words.size)
    assert run.recipe.train.steps == 2 and run.complete


def test_a_run_is_opened_by_a_string_and_can_be_pickled_after_it_was_used(tmp_path: Path) -> None:
    train(MODEL, *QUICK, data=text(tmp_path), steps=2, out=tmp_path / "run", cache=tmp_path / "cache")
    run = Run(str(tmp_path / "run"))
    (written,) = run.generate(["The"])
    copy = pickle.loads(pickle.dumps(run))
    assert copy == run and copy.folder == tmp_path / "run" and copy.generate(["The"]) == [written]
    with pytest.warns(UserWarning, match="were in the training data"):
        assert run.evaluate(Path(text(tmp_path)))["loss"].value > 0


def test_a_run_stays_valid_when_the_working_directory_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = train(MODEL, *QUICK, data=text(tmp_path), steps=2, out="run", cache="cache")
    assert str(run.folder) == "run" and run == Run(tmp_path / "run")  # messages name the path as it was written
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert list(run.metrics()) and run.complete and run.folder == tmp_path / "run" and run == Run(tmp_path / "run")
    assert run.generate(["The"]) == Run(tmp_path / "run").generate(["The"])


def test_data_take_a_model_and_an_optimizer_as_sections(tmp_path: Path) -> None:
    muon = Muon(lr=2e-3)
    run = train(
        text(tmp_path), *QUICK, model=MODEL, optimizer=muon, steps=1, out=tmp_path / "run", cache=tmp_path / "c"
    )
    assert run.recipe.optimizer == muon and isinstance(run.recipe.model, Decoder)
    assert run.recipe.model.stack == MODEL.stack


def test_a_source_is_a_target_like_the_path_that_it_reads(tmp_path: Path) -> None:
    source = Copy(length=4, count=200)
    run = train(source, *QUICK, model=MODEL, steps=1, out=tmp_path / "run", cache=tmp_path / "c")
    assert run.recipe.data is not None and run.recipe.data.source == source
    longer = draft(source, ["data.source.length=5"])
    assert longer.data["data"]["source"] == source.with_("length", 5).to_dict()
    assert draft(Text(path=text(tmp_path))).data["model"] == draft(str(text(tmp_path))).data["model"]
    with pytest.raises(SpecError, match="copy is data already"):
        train(source, data=text(tmp_path))


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
    with pytest.raises(
        SpecError, match=r"optimiser: a recipe has no such section\. Did you mean 'optimizer'\? Known: "
    ):
        train(MODEL, data=text(tmp_path), optimiser=Muon())  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "value", "key"),
    [
        ("lr", 3e-4, "optimizer.lr=..."),
        ("batch_size", 64, "train.batch_tokens=..."),
        ("device", "cpu", "train.device=..."),
    ],
)
def test_a_key_of_a_section_as_an_argument_is_answered_with_its_override(name: str, value: Any, key: str) -> None:
    for call in (train, compare):
        with pytest.raises(SpecError, match=f'{name}: is a key of .*"{re.escape(key)}"'):
            call(MODEL, **{name: value})  # type: ignore[arg-type]


def test_a_folder_that_is_no_path_is_refused_by_its_argument() -> None:
    for call in (train, compare):
        for name in ("out", "cache"):
            with pytest.raises(SpecError, match=rf"^{name}: expected a path, got 4\."):
                call(MODEL, **{name: 4})  # type: ignore[arg-type]


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


def test_arguments_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"steps=2 and train.steps=5 contradict"):
        train(MODEL, data=text(tmp_path), steps=2, train=TrainSpec(steps=5))
    with pytest.raises(SpecError, match="model= names another one"):
        train(MODEL, data=text(tmp_path), model=MODEL)
    with pytest.raises(SpecError, match="got a built module"):
        train(MODEL.with_("vocab", 9).build(), data=text(tmp_path))  # type: ignore[arg-type]


@pytest.mark.parametrize("target", [None, 3, ["notes.txt"], Decoder])
def test_a_target_of_another_type_is_refused_before_anything_is_read(target: Any) -> None:
    for call in (train, compare):
        with pytest.raises(SpecError, match=r"^target: expected a path, a preset's name, .* got "):
            call(target)


def test_a_class_as_the_target_is_answered_with_a_call() -> None:
    with pytest.raises(SpecError, match=r"Write Copy\(\.\.\.\)"):
        train(Copy)  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [["a text", "another"], {"path": "notes.txt"}, Text, 3])
def test_data_of_another_type_are_refused_with_the_types_that_fit(data: Any) -> None:
    with pytest.raises(SpecError, match=r"^data: expected a path or a source such as .* got .* write_records"):
        train(MODEL, data=data)


def test_wrong_arguments_of_train_and_compare_are_named() -> None:
    wrong: Any = Watcher
    with pytest.raises(SpecError, match=r"^watcher: expected a Watcher, got <class .* Write Watcher\(\)\."):
        train(MODEL, watcher=wrong)
    overrides: Any = ["model.dim=8"]
    with pytest.raises(SpecError, match=r"^an override is a string.*\*list"):
        load("small", overrides)
    arms: Any = {"mine": MODEL, "other": 3}
    with pytest.raises(SpecError, match=r"^arm other: expected a path"):
        compare(arms, data="notes.txt")
    with pytest.raises(SpecError, match=r"^arms: expected several, got one string"):
        compare("notes.txt", arms="lstm")


def test_an_empty_path_is_not_the_present_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="the path of the data is empty"):
        train("", *QUICK)


def test_the_cache_may_be_a_string(tmp_path: Path) -> None:
    train(MODEL, *QUICK, data=text(tmp_path), steps=1, out=tmp_path / "run", cache=str(tmp_path / "cache"))
    assert any((tmp_path / "cache").iterdir())


def test_training_leaves_the_random_numbers_of_its_caller_alone(tmp_path: Path) -> None:
    drawn = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        expected = torch.rand(3)
        torch.manual_seed(seed)
        train(text(tmp_path), *QUICK, model=MODEL, steps=1, out=tmp_path / f"{seed}", cache=tmp_path / "c")
        drawn.append(torch.rand(3))
        assert drawn[-1].equal(expected)


def test_columns_that_the_user_names_decide_about_the_defaults(tmp_path: Path) -> None:
    rows = [{"words": f"item {number} is fine", "kind": "ab"[number % 2]} for number in range(60)]
    (file := tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    named = draft(str(file), ("data.source.text=words", "data.source.label=kind"))
    assert named.data["model"]["kind"] == "encoder" and named.data["objective"]["kind"] == "classify"
    assert draft(str(file), ()).data["objective"]["kind"] == "next_token"


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Branch(part=MLP(), place="PRE"), "place: 'PRE' is not a choice.* pre"),  # type: ignore[arg-type]
        (lambda: Branch(part=MLP(), norm=None), "norm: expected a NormSpec, got None"),  # type: ignore[arg-type]
        (lambda: MLP(activation="swish"), "activation: 'swish' is not a choice"),  # type: ignore[arg-type]
        (lambda: Attention(position="rope"), r"position: expected a PositionSpec.* Write Rope\(...\)"),  # type: ignore[arg-type]
        (lambda: Attention(position=Rope), r"position: expected a PositionSpec.* Write Rope\(...\)"),  # type: ignore[arg-type]
        (lambda: Block(branches=(MLP(),)), r"branches\[0\]: expected a Branch, got MLP"),  # type: ignore[arg-type]
        (lambda: Stack(blocks=[], depth=1), "blocks: expected a table"),  # type: ignore[arg-type]
    ],
)
def test_a_choice_or_spec_of_another_type_is_refused_in_python(make: Callable[[], Spec], complaint: str) -> None:
    with pytest.raises(SpecError, match=complaint):
        make()


def test_a_list_equals_the_same_values_as_a_tuple() -> None:
    branches = [Branch(part=MLP())]
    assert Block(branches=branches) == Block(branches=tuple(branches))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [torch.nn.ReLU(), torch.nn.ReLU])
def test_a_torch_module_in_place_of_a_part_is_answered_with_the_way_to_make_one(value: Any) -> None:
    with pytest.raises(SpecError, match=r"part: expected a PartSpec, got .*torch_part\(name, factory\)"):
        Branch(part=value)


def test_a_model_may_be_the_name_of_a_preset(tmp_path: Path) -> None:
    size = ("model.stack.depth=1", "model.dim=16", "model.stack.blocks.layer.branches.0.part.heads=2")
    run = train(text(tmp_path), *QUICK, *size, model="small", steps=1, out=tmp_path / "run", cache=tmp_path / "c")
    assert run.recipe.model.kind == "decoder" and run.recipe.model.output_stack.dim == 16
    assert json.loads((run.folder / "sources.json").read_text())["model.kind"] == "preset small"
    with pytest.raises(SpecError, match=r"no preset is called 'smal'\. Did you mean 'small'"):
        train(text(tmp_path), *QUICK, model="smal", out=tmp_path / "other", cache=tmp_path / "c")


def test_training_in_python_prints_the_messages_of_the_command_unless_a_watcher_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("data.context=32", *QUICK)
    train(MODEL, *words, "data.valid=0", data=text(tmp_path), steps=40, out=tmp_path / "run", cache=tmp_path / "c")
    printed = capsys.readouterr()
    lines = printed.err.splitlines()
    assert f"{tmp_path / 'run'}: fp32 on cpu" in lines and any("there is no validation data" in line for line in lines)
    assert 10 <= sum(line.startswith("step ") for line in lines) <= 12 and not printed.out
    train(MODEL, *words, data=text(tmp_path), steps=1, out=tmp_path / "2", cache=tmp_path / "c", watcher=Watcher())
    printed = capsys.readouterr()
    assert not printed.err and not printed.out


def test_records_in_memory_are_written_trained_on_and_evaluated(tmp_path: Path) -> None:
    words = ("red", "green", "blue")
    rows = [{"text": f"the {word} door {n}", "label": word} for n in range(40) for word in words]
    path = write_records(tmp_path / "doors.jsonl", rows)
    run = train(path, "model.dim=16", steps=2, out=tmp_path / "run", cache=tmp_path / "cache", watcher=Watcher())
    assert sorted(run.trained().contents.classes) == sorted(words)
    fresh = write_records(tmp_path / "more.jsonl", [{"body": "the red window", "colour": "red"}] * 3)
    source = JSONLines(path=str(fresh), text="body", label="colour")
    assert run.evaluate(source)["accuracy"].texts == 3
    for call in (run.evaluate, train):
        with pytest.raises(SpecError, match=r'write_records\("NAME\.jsonl", records\)'):
            call(rows)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["recipe", "tokenizer", "environment", "newest", "best_step"])
def test_a_mistyped_run_is_answered_with_the_similar_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "reviews").mkdir()
    with pytest.raises(CheckpointError, match=r"reviewz: no such file or folder\. Did you mean '.*reviews'\?"):
        getattr(Run(tmp_path / "reviewz"), name)
