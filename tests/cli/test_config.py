"""`anyformer config`: what a recipe is, where it came from, what is wrong with it."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.cli.shipped import FOLDER, RECIPES

import anyformer
from anyformer.cli.main import main
from anyformer.core.fields import leaves
from anyformer.core.plain_data import inline
from anyformer.core.plain_data import toml_document as document
from anyformer.core.schema import schema
from anyformer.training import Recipe, load_recipe

Capture = pytest.CaptureFixture[str]


def printed(capsys: Capture, *arguments: str) -> str:
    assert main(["config", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("target", ["small", "t5-small", "bigbird-base", "albert-base"])
def test_what_is_shown_is_a_recipe_that_means_the_same(target: str, tmp_path: Path, capsys: Capture) -> None:
    text = printed(capsys, "show", target)
    (tmp_path / "mine.toml").write_text(text)
    recipe = load_recipe(target).recipe
    assert tomllib.loads(text) == recipe.to_dict()
    assert load_recipe(tmp_path / "mine.toml").recipe == recipe


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_every_recipe_that_comes_with_us_is_fine_before_its_data_are_read(file: Path, capsys: Capture) -> None:
    assert f"{file.stem} is valid" in printed(capsys, "check", str(file))


def test_what_only_the_data_can_say_has_a_stand_in_that_says_so(capsys: Capture) -> None:
    found = json.loads(printed(capsys, "show", str(FOLDER / "classification.toml"), "--json"))
    assert found["origins"]["objective.classes"] == "placeholder until the data are read"


def test_every_value_has_its_origin_behind_it(capsys: Capture) -> None:
    text = printed(capsys, "show", "gpt2-medium", "model.dropout=0.1")
    assert all("  # " in line for line in text.splitlines() if " = " in line)
    first = text.partition("[model.stack]")[0].splitlines()
    origins = {line.split(" = ")[0]: line.partition("  # ")[2] for line in first}
    assert origins["dropout"] == "command line"
    assert origins["vocab"] == "preset gpt2"
    assert origins["types"] == "default"


def test_quiet_shows_the_values_alone(capsys: Capture) -> None:
    text = printed(capsys, "show", "small", "--quiet")
    assert "#" not in text
    assert tomllib.loads(text) == load_recipe("small").recipe.to_dict()


def test_as_json_it_is_the_recipe_and_the_origins(capsys: Capture) -> None:
    found = json.loads(printed(capsys, "show", "small", "model.dim=64", "--json"))
    assert anyformer.decode(Recipe, found["recipe"]).model == anyformer.load("small", "model.dim=64")
    assert found["origins"].keys() == dict(leaves(found["recipe"])).keys()
    assert found["origins"]["model.dim"] == "command line"


def test_check_tells_the_totals_of_what_is_fine(capsys: Capture) -> None:
    assert "small is valid: 4.22 M parameters" in printed(capsys, "check", "small")
    assert printed(capsys, "check", "small", "--quiet") == ""
    found = json.loads(printed(capsys, "check", "small", "--json"))
    assert found["ok"] is True
    assert found["params"] == 4_222_208


def test_check_lists_all_that_is_wrong(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('nam = "x"\n[model]\npreset = "small"\ndropout = 1.5\nvocab = "many"\n[model.stack]\ndepth = 2.5\n')
    assert main(["config", "check", str(file)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert {line.split(": ")[1] for line in captured.err.splitlines()} == {
        "nam",
        "model.dropout",
        "model.vocab",
        "model.stack.depth",
    }


def test_check_builds_the_model_too(capsys: Capture) -> None:
    assert main(["config", "check", "small", "model.stack.blocks.layer.branches.0.part.heads=6"]) == 2
    assert "model.stack.blocks.layer.branches[0].part: heads=6 must divide dim=256" in capsys.readouterr().err


@pytest.mark.row("SCL-06", clause="48 layers, d = 1600, 25 heads")
def test_diff_names_the_keys_with_both_values(capsys: Capture) -> None:
    assert json.loads(printed(capsys, "diff", "gpt2", "gpt2-xl", "--json")) == {
        "model.dim": [768, 1600],
        "model.stack.depth": [12, 48],
        "model.stack.blocks.layer.branches.0.part.heads": [12, 25],
    }
    assert "model.stack.depth" in printed(capsys, "diff", "gpt2", "gpt2-xl")
    assert printed(capsys, "diff", "gpt2", "gpt2-xl", "--quiet").splitlines()[0] == "model.dim"
    assert "are equal" in printed(capsys, "diff", "small", "small")


def test_the_schema_is_printed_as_json(capsys: Capture) -> None:
    assert json.loads(printed(capsys, "schema")) == schema(Recipe)


@pytest.mark.parametrize(
    "data",
    [
        {"a": 1, "b": {"c": 'quote " and \\ and \x7f', "d": {"e": [1, 2.5, True]}}},
        {"a key": {"b.c": {"d": 1}}, "empty": {}, "none": []},
        {"list": [{"a": {"b": 1}, "c": [{"d": 1}, {"d": 2}]}, {}]},
        {"mixed": [1, {"a": 1}], "nested": [[1], ["x"]], "word": "größe\n"},
        {"a": {"b": {"c": {"d": 1}}, "e": 2}},
    ],
)
def test_any_plain_data_is_written_as_toml(data: dict[str, Any]) -> None:
    assert tomllib.loads(document(data, lambda key: key)) == data
    assert tomllib.loads(f"x = {inline(data)}") == {"x": data}
