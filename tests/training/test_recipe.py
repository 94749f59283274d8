"""Recipe files: layers, overrides, where each value came from, and what is said of mistakes."""

import sys
from pathlib import Path

import pytest

import anyformer
from anyformer.errors import SpecError
from anyformer.parts.channels.mlp import MLP
from anyformer.training import Recipe, load, load_recipe
from anyformer.training.recipes.toml_layers import preset_file, preset_names

HEADS = "model.stack.blocks.layer.branches.0.part.heads"


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def refusal(target: str, *overrides: str) -> str:
    with pytest.raises(SpecError) as caught:
        load_recipe(target, overrides)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_a_file_may_start_from_a_preset_and_say_what_differs(tmp_path: Path) -> None:
    file = write(tmp_path, "mine.toml", '[model]\npreset = "gpt2"\ndim = 96\n[model.stack]\ndepth = 3')
    loaded = load_recipe(file, [f"{HEADS}=6"])
    assert loaded.name == "mine"
    assert loaded.recipe.model.diff(load("gpt2")) == {
        "dim": (96, 768),
        "stack.depth": (3, 12),
        "stack.blocks.layer.branches.0.part.heads": (6, 12),
    }


def test_null_removes_an_optional_part() -> None:
    changed = load("gpt2").diff(load("gpt2", "model.exit_norm=null"))
    assert changed["exit_norm.kind"] == ("layer", None) and all(key.startswith("exit_norm.") for key in changed)
    assert "model.dim: expected a whole number" in refusal("gpt2", "model.dim=null")


def test_the_origin_of_every_value_is_kept(tmp_path: Path) -> None:
    file = write(tmp_path, "mine.toml", '[model]\npreset = "gpt2"\ndim = 96')
    origins = load_recipe(file, [f"{HEADS}=6"]).origins
    assert origins["model.dim"] == file
    assert origins["model.vocab"] == "preset gpt2"
    assert origins[HEADS] == "command line"
    assert origins["model.dropout"] == "default"
    assert set(origins.values()) == {file, "preset gpt2", "command line", "default"}


def test_files_extend_files_and_numbers_reach_into_lists(tmp_path: Path) -> None:
    write(tmp_path, "low.toml", 'name = "low"\n[model]\npreset = "small"\nvocab = 100')
    write(tmp_path, "mid.toml", 'extends = "low.toml"\n[model.stack.blocks.layer.branches.0.part]\nheads = 4')
    high = write(tmp_path, "high.toml", 'extends = "mid.toml"\n[model]\nvocab = 50')
    loaded = load_recipe(high)
    assert loaded.name == "high"
    assert loaded.recipe.model == load("small", "model.vocab=50", f"{HEADS}=4")
    assert loaded.origins[HEADS] == str(tmp_path / "mid.toml")


def test_a_preset_that_extends_another_says_which_one_a_value_is_from() -> None:
    origins = load_recipe("gpt2-xl").origins
    assert origins["model.dim"] == "preset gpt2-xl"
    assert origins["model.vocab"] == "preset gpt2"


def test_another_preset_replaces_the_whole_model(tmp_path: Path) -> None:
    write(tmp_path, "low.toml", '[model]\npreset = "bert-base"')
    high = write(tmp_path, "high.toml", 'extends = "low.toml"\n[model]\npreset = "small"\ndim = 64')
    assert load(high) == load("small", "model.dim=64")
    assert load("bert-base", "model.dim=64", "model.preset=small") == load("small", "model.dim=64")


def test_another_kind_in_a_layer_leaves_nothing_of_the_old_one(tmp_path: Path) -> None:
    text = '[model]\npreset = "small"\n[model.stack.blocks.layer.branches.0.part]\nkind = "mlp"'
    model = load(write(tmp_path, "mine.toml", text))
    assert model == load("small", "model.stack.blocks.layer.branches.0.part.kind=mlp")
    assert model.to_dict()["stack"]["blocks"]["layer"]["branches"][0]["part"] == MLP().to_dict()


def test_the_order_of_overrides_does_not_matter() -> None:
    part = "model.stack.blocks.layer.branches.1.part"
    overrides = [f"{part}.hidden=64", f"{part}.kind=mlp", "model.dim=64"]
    assert load("small", *overrides) == load("small", *reversed(overrides))
    assert load_recipe("small", overrides).origins[f"{part}.activation"] == "default"


def test_brackets_and_dots_are_the_same_key() -> None:
    assert load("small", HEADS.replace(".0.", "[0].") + "=4") == load("small", f"{HEADS}=4")


def test_a_recipe_holds_the_sections_of_a_run_and_survives_its_own_data() -> None:
    recipe = load_recipe("small", ["name=mine"]).recipe
    sections = {"optimizer", "schedule", "train", "evaluate", "checkpoint", "log", "sample"}
    assert set(recipe.to_dict()) == {"format", "name", "seed", "model", *sections}
    assert anyformer.decode(Recipe, recipe.to_dict()) == recipe
    assert anyformer.load("small") == load("small")


def test_a_key_that_another_kind_has_is_not_sent_to_another_section() -> None:
    """`size` is a key of Muon, but whoever writes it for a tokenizer means the size of a vocabulary."""
    overrides = ["optimizer.kind=muon", "data.source.kind=python_topics", "data.tokenizer.kind=byte"]
    with pytest.raises(SpecError, match=r"tokenizer.size: Byte has no such key.*It is a key of bpe, "):
        load_recipe("small", [*overrides, "data.tokenizer.size=500"])


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("model.dropout=1.5", "model.dropout: must be below 1, got 1.5."),
        ("model.dim=-1", "model.dim: must be at least 1, got -1."),
        ("model.stack.depth=2.5", "model.stack.depth: expected a whole number, got 2.5."),
        ("model.vocab=many", "model.vocab: expected a whole number, got 'many'."),
        ("model.droput=0.1", "model.droput: Decoder has no such key. Did you mean 'dropout'?"),
        ("model=gpt2", "model: expected a table, got 'gpt2'. Write model.preset=gpt2"),
        ("optimizer=lion", "optimizer: expected a table, got 'lion'. Write optimizer.kind=lion"),
        ("modle.dim=3", "modle: Recipe has no such key. Did you mean 'model'?"),
        ("dim=3", "dim belongs to model: write model.dim."),
        ("model.depth=3", "depth belongs to model.stack: write model.stack.depth."),
        ("model.heads=3", f"write {HEADS}."),
        ("preset=gpt2", "preset belongs to model: write model.preset."),
        ("model.name=x", "name belongs to the top: write name."),
        ("model.dim", "'model.dim' is not an override. Write key=value"),
        ("model.stack.blocks.layer.branches.9.dropout=0.1", "this is a list of 2; use a number from 0 to 1"),
        ("model.preset=gtp2", "model.preset: no preset is called 'gtp2'. Did you mean 'gpt2'?"),
        ("model.preset=3", "model.preset: expected a string, got 3."),
        ("model.kind=adamw", "no ModelSpec is called 'adamw'."),
        ("format=7", "made by a newer anyformer"),
        ("format=1", "made by an anyformer before its first release: format 1"),
    ],
)
def test_a_wrong_override_is_told_with_its_key(override: str, complaint: str) -> None:
    assert complaint in refusal("small", override)


def test_everything_wrong_is_told_at_once_with_its_file(tmp_path: Path) -> None:
    text = 'dim = 3\n[model]\npreset = "small"\nvocab = "many"\ndropout = 1.5\n[model.stack]\ndepth = 2.5'
    file = write(tmp_path, "mine.toml", text)
    lines = refusal(file, "model.types=-1").splitlines()
    keys = {line.split(":")[0] for line in lines}
    assert keys == {"dim", "model.vocab", "model.dropout", "model.stack.depth", "model.types"}
    assert [line for line in lines if not line.endswith(f"(from {file})")] == [
        "model.types: must be at least 0, got -1."
    ]


@pytest.mark.parametrize(
    ("text", "place"),
    [("[model]\nkind = \n", ":2:8: "), ("[model\n", ":1:7: "), ("a = 1\na = 2\n", ":2:"), ('a = """x', ":1:9: ")],
)
def test_a_syntax_error_has_a_line_and_a_column(tmp_path: Path, text: str, place: str) -> None:
    file = write(tmp_path, "mine.toml", text)
    assert refusal(file).startswith(f"{file}{place}")


def test_a_file_that_is_only_a_model_is_told_where_it_belongs(tmp_path: Path) -> None:
    text = preset_file("small").read_text().replace("[model]", "").replace("model.", "")
    assert "Put it under [model]" in refusal(write(tmp_path, "mine.toml", text))


@pytest.mark.parametrize("kind", ["os.system", "outside_model", "outside_model.Evil", "../small"])
def test_a_kind_is_never_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    (tmp_path / "outside_model.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    file = write(tmp_path, "mine.toml", f'[model]\nkind = "{kind}"')
    assert f"no ModelSpec is called '{kind}'" in refusal(file)
    assert "no PartSpec" in refusal("small", f"model.stack.blocks.layer.branches.0.part.kind={kind}")
    assert "outside_model" not in sys.modules


def test_a_newer_format_is_refused_and_a_missing_one_is_the_current(tmp_path: Path) -> None:
    newer = write(tmp_path, "newer.toml", 'format = 3\nnew_key = 3\n[model]\npreset = "small"')
    assert "made by a newer anyformer" in refusal(newer)
    assert "made by a newer anyformer" in refusal(write(tmp_path, "mine.toml", 'extends = "newer.toml"'))
    assert load_recipe("small").recipe.format == 2


def test_a_missing_file_is_answered_with_what_is_there(tmp_path: Path) -> None:
    write(tmp_path, "mine.toml", "")
    text = refusal(str(tmp_path / "mime.toml"))
    assert text == f"{tmp_path / 'mime.toml'}: no such file or folder. Did you mean '{tmp_path / 'mine.toml'}'?"
    assert refusal(str(tmp_path / "zebra.toml")).endswith("no such file or folder.")
    assert "Did you mean the preset 'small'?" in refusal(str(tmp_path / "nowhere" / "smal.toml"))
    assert "preset" not in refusal(str(tmp_path / "nowhere" / "demoo.toml")), "elmo is another word"
    assert f"Did you mean the file '{tmp_path / 'mine'}.toml'?" in refusal(str(tmp_path / "mine"))


@pytest.mark.parametrize("name", ["folder/gpt", "notes.txt", "nowhere.toml"])
def test_a_missing_path_is_not_answered_with_all_presets(name: str) -> None:
    text = refusal(name)
    assert text.startswith(f"{name}: no such file or folder") and "albert-base" not in text


def test_a_folder_or_a_dangling_link_is_not_answered_with_itself(tmp_path: Path) -> None:
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "link.toml").symlink_to(tmp_path / "nowhere")
    assert refusal(str(tmp_path / "folder.toml")) == f"{tmp_path / 'folder.toml'}: not a regular file."
    assert refusal(str(tmp_path / "link.toml")).startswith(f"{tmp_path / 'link.toml'}: is a link to {tmp_path}")


def test_a_number_with_thousands_of_digits_is_told_without_pythons_advice(tmp_path: Path) -> None:
    write(tmp_path, "long.toml", f"seed = {'9' * 5000}")
    assert refusal(str(tmp_path / "long.toml")).endswith("holds a whole number with thousands of digits.")


def test_an_unknown_preset_is_answered_with_the_nearest_or_all() -> None:
    assert refusal("gtp2").endswith("Did you mean 'gpt2'?")
    text = refusal("zzz")
    assert "Did you mean" not in text and all(name in text for name in preset_names())


def test_what_is_no_recipe_is_refused(tmp_path: Path) -> None:
    assert "is not a recipe" in refusal(str(tmp_path))
    (tmp_path / "picture.toml").write_bytes(b"\x89PNG\xff\xfe")
    assert "not UTF-8 text" in refusal(str(tmp_path / "picture.toml"))
    (tmp_path / "huge.toml").write_text("# " + "x" * (1 << 20))
    assert "is not a recipe" in refusal(str(tmp_path / "huge.toml"))
    (tmp_path / "deep.toml").write_text("a = " + "[" * 100_000)
    assert "nested too deeply" in refusal(str(tmp_path / "deep.toml"))
    assert "model: is missing." in refusal(write(tmp_path, "empty.toml", ""))


def test_circles_are_refused(tmp_path: Path) -> None:
    first = write(tmp_path, "a.toml", 'extends = "b.toml"')
    write(tmp_path, "b.toml", 'extends = "./a.toml"')
    assert "a circle" in refusal(first)
    assert "a circle" in refusal(write(tmp_path, "self.toml", 'extends = "self.toml"'))


@pytest.mark.parametrize(
    ("extends", "complaint"),
    [('"nowhere.toml"', "no such file"), ("3", "expected the name"), ('"gpt2"', 'write preset = "gpt2" under')],
)
def test_extends_takes_a_file_that_is_there(tmp_path: Path, extends: str, complaint: str) -> None:
    file = write(tmp_path, "mine.toml", f"extends = {extends}")
    text = refusal(file)
    assert text.startswith(f"{file}: extends: ")
    assert complaint in text


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_bytes(b'\xef\xbb\xbf[model]\r\npreset = "small"\r\n')
    assert load(tmp_path / "mine.toml") == load("small")


def test_small_is_a_small_model_of_todays_parts() -> None:
    model = load("small").to_dict()
    first, second = model["stack"]["blocks"]["layer"]["branches"]
    assert (model["vocab"], model["dim"], model["max_len"], model["stack"]["depth"]) == (256, 256, 1024, 6)
    assert (first["part"]["heads"], first["part"]["kv_heads"], first["part"]["position"]["kind"]) == (8, 2, "rope")
    assert (second["part"]["kind"], second["part"]["activation"]) == ("glu", "silu")
    assert {branch["norm"]["kind"] for branch in (first, second)} == {"rms"} == {model["exit_norm"]["kind"]}


@pytest.mark.parametrize("written", ['packing = "rows"', 'packing = { kind = "rows" }'])
def test_a_packing_is_written_as_a_string_or_as_a_table(tmp_path: Path, written: str) -> None:
    data = 'source = { kind = "number_words" }\ntokenizer = { kind = "byte" }'
    file = tmp_path / "a.toml"
    file.write_text(f'[model]\npreset = "small"\n[data]\n{data}\n{written}\n')
    for overrides, kind, origin in (
        ((), "rows", str(file)),
        (("data.packing=stream",), "stream", "command line"),
        (("data.packing.kind=pack",), "pack", "command line"),
        (("data.packing=auto",), "auto", "command line"),
    ):
        loaded = load_recipe(file, overrides)
        assert loaded.recipe.to_dict()["data"]["packing"] == {"kind": kind}
        assert loaded.origins["data.packing.kind"] == origin
