"""A study as a value: where arms come from, and what is refused before anything is read or trained."""

from pathlib import Path

import pytest
import tomli_w

from anyformer.core import PartSpec
from anyformer.errors import SpecError
from anyformer.study.arms import arm_names
from anyformer.study.study import read_study
from anyformer.training.loop.budget import estimate
from anyformer.training.recipes.recipe import decode_recipe
from anyformer.training.recipes.resolve import provisional


@pytest.mark.parametrize("name", arm_names())
def test_every_arm_that_has_a_name_is_a_model_of_the_base_recipes_size(name: str) -> None:
    arm = read_study("small", [f"study.arms=['base', '{name}']", "model.dim=32", "model.stack.depth=2"]).arms[name]
    model = decode_recipe(provisional(arm), name).recipe.model.to_dict()
    assert (model["dim"], model["stack"]["depth"], model["max_len"]) == (32, 2, 1024)


@pytest.mark.parametrize("name", arm_names())
def test_every_arm_with_a_name_reads_in_both_directions_in_an_encoder(name: str) -> None:
    arm = read_study("small-encoder", [f"study.arms=['base', '{name}']", "model.dim=32"]).arms[name]
    model = decode_recipe(provisional(arm), name).recipe.model.with_("vocab", 300)
    parts = [spec for _, spec in model.walk() if isinstance(spec, PartSpec)]
    assert model.build(device="meta") is not None
    assert sum(part.causal_only for part in parts) == sum(part.kind == "bidirectional" for part in parts)


MIXED = ("transformer", "lstm", "cnn", "s4d")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in MIXED else pytest.mark.slow) for name in arm_names()]
)
def test_the_memory_of_every_arm_is_known_in_mixed_precision(name: str) -> None:
    arm = read_study("small", [f"study.arms=['base', '{name}']", "model.dim=32", "model.stack.depth=1"]).arms[name]
    model = decode_recipe(provisional(arm), name).recipe.model
    (_, long), (_, short) = (estimate(model, length, "bf16") for length in (512, 256))
    assert 1.9 < long / short < 2.1


def test_an_arm_is_the_base_recipe_with_changes() -> None:
    study = read_study("small", ["arms.slow.optimizer.lr=1e-5", "arms.rnn.like=lstm-lm", "train.steps=7"])
    assert list(study.arms) == ["base", "rnn", "slow"]
    assert study.arms["slow"].data["optimizer"]["lr"] == 1e-5 and study.arms["slow"].data["train"]["steps"] == 7
    assert study.arms["rnn"].data["model"]["stack"]["depth"] == 2


def test_changes_to_an_architecture_that_is_known_by_name_keep_it() -> None:
    """Without this, two equal models would be compared, one of them under the name lstm."""
    words = ["arms.lstm.optimizer.lr=1e-5", "arms.mamba.model.stack.blocks.layer.branches.0.part.states=8"]
    plain = read_study("small", ["study.arms=['base', 'lstm', 'mamba']"])
    study = read_study("small", ["study.arms=['base', 'lstm', 'mamba']", *words])
    assert study.arms["lstm"].data["model"] == plain.arms["lstm"].data["model"] != study.arms["base"].data["model"]
    assert study.arms["lstm"].data["optimizer"]["lr"] == 1e-5
    parts = [
        study.arms["mamba"].data["model"]["stack"]["blocks"]["layer"]["branches"][place]["part"] for place in (0, 1)
    ]
    assert (parts[0]["kind"], parts[0]["states"]) == ("mamba", 8) and parts[1]["kind"] == "mlp"


def test_an_arm_that_describes_its_layers_may_have_any_name(tmp_path: Path) -> None:
    branch = "{part = {kind = 'gru'}, norm = {kind = 'rms'}}"
    file = tmp_path / "study.toml"
    file.write_text(f"[model]\npreset = 'small'\n[arms.lstm.model.stack.blocks.layer]\nbranches = [{branch}]\n")
    blocks = read_study(file).arms["lstm"].data["model"]["stack"]["blocks"]
    assert [branch["part"]["kind"] for branch in blocks["layer"]["branches"]] == ["gru"]


def test_a_study_is_stored_in_the_same_words_when_it_goes_on(tmp_path: Path) -> None:
    study = read_study("small", ["study.arms=['transformer', 'small', 'lstm']", "data.context=64"])
    stored = study.to_dict()
    assert stored["arms"]["small"] == {} and not any("like" in table for table in stored["arms"].values())
    (file := tmp_path / "study.toml").write_text(tomli_w.dumps(stored))
    assert read_study(file).to_dict() == stored


def test_a_stored_arm_stays_what_it_was_whatever_its_name(tmp_path: Path) -> None:
    study = read_study("small", ["study.arms=['base', 'lstm']", "arms.lstm.like=base", "arms.lstm.optimizer.lr=1e-5"])
    assert study.arms["lstm"].data["model"] == study.arms["base"].data["model"]
    (file := tmp_path / "study.toml").write_text(tomli_w.dumps(study.to_dict()))
    again = read_study(file)
    assert again.to_dict() == study.to_dict() and again.arms["lstm"].data["optimizer"]["lr"] == 1e-5
    assert again.arms["lstm"].data["model"]["stack"] == study.arms["base"].data["model"]["stack"]


def test_pairs_are_read_by_architectures_that_have_two_sides() -> None:
    study = read_study("number_words")
    assert list(study.arms) == ["base", "rnn-attention", "rnn-seq2seq", "convs2s"]
    kinds = {decode_recipe(provisional(arm), name).recipe.model.kind for name, arm in study.arms.items()}
    assert kinds == {"encoder_decoder"}


def test_a_study_file_says_all_of_it_again() -> None:
    study = read_study("small", ["arms.slow.optimizer.lr=1e-5", "arms.rnn.like=lstm-lm"])
    told = study.to_dict()
    assert "vocab" not in told["model"] and told["arms"]["base"] == {}
    assert told["arms"]["slow"] == {"optimizer": {"lr": 1e-5}} and "vocab" not in told["arms"]["rnn"]["model"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["study.arms=['lstn', 'base']"], "no arm is called 'lstn'. Did you mean 'lstm'"),
        (["study.arms=['lstm']"], "is a single arm, but a comparison needs two"),
        (["study.arms=['lstm', 'lstm']"], "'lstm' is listed twice"),
        (["study.arms=['../x', 'base']", "arms.y.seed=1"], "is not a valid name"),
        (["study.match=size"], "study.match"),
        (["stuydy.jobs=2"], "stuydy: a study has no such table. Did you mean 'study'"),
        (["study.seed=3"], "study.seed: StudySpec has no such key. Did you mean 'seeds'"),
        (["study.seeds=0"], "study.seeds: must be at least 1"),
        (["arms.x=3"], "arms.x: expected a table"),
        (
            ["study.arms=['base', 'lstm']", "arms.lsmt.optimizer.lr=1e-3"],
            "arms.lsmt.optimizer.lr: the study has no arm called 'lsmt'. Did you mean 'lstm'",
        ),
        (["study.arms=['mine.toml', 'base']"], "'mine.toml': an arm is a name"),
        (["arms.x.like=nothing"], "no arm is called 'nothing'"),
        (["downstream.x.train.steps=3"], "downstream.x.metric: is missing"),
        (["model.stack.blocks.layer.branches.0.part.heads=2"], "every arm sets this itself. Write arms.NAME.model"),
    ],
)
def test_what_is_wrong_with_a_study_is_named(words: list[str], complaint: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_study("small", words)
    assert complaint in str(caught.value)


def test_an_arm_of_one_stack_is_refused_where_there_are_two() -> None:
    with pytest.raises(SpecError, match=r"'lstm' changes the one stack.* Name presets, as base, rnn-attention"):
        read_study("number_words", ["study.arms=['base', 'lstm']"])
