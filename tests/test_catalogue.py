"""The catalogue equals the classes, and the verbs that use it answer like the classes, without torch."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from anyformer.cli.main import main
from anyformer.core import discovery
from anyformer.core.discovery import catalogue, source_files
from anyformer.reporting.catalogue import stored_entries
from anyformer.reporting.installed_kinds import installed_entries, measured
from anyformer.training import load_recipe
from anyformer.training.recipes import quick
from anyformer.training.recipes.toml_layers import read

ROOT = Path(__file__).parents[1]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("catalogue", ROOT / "tools" / "catalogue.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def suffices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalogue is used although the tests have imported torch."""
    monkeypatch.setattr(quick, "catalogue_suffices", lambda: True)


def plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def test_the_catalogue_has_the_fields_of_every_class(tool: ModuleType) -> None:
    assert catalogue()["files"] == source_files(), "Run: make rows"
    # A torch module that another test has registered may still be in memory as a class: it stands in no module.
    classes = {name: row for name, row in tool.classes().items() if name in vars(sys.modules[row["module"]])}
    assert catalogue()["classes"] == plain(classes), "Run: make rows"


def test_the_catalogue_has_the_text_of_every_kind() -> None:
    ours = {(row["family"], row["kind"]) for row in catalogue()["classes"].values()}
    installed = [entry.to_dict() for entry in installed_entries() if (entry.family, entry.kind) in ours]
    assert [entry.to_dict() for entry in stored_entries()] == plain(installed), "Run: make rows"


def test_the_kinds_of_a_family_are_loaded_without_those_of_others() -> None:
    probe = (
        "import json, sys; from anyformer.objectives.objective import Objective; Objective.load_kinds();"
        "print(json.dumps([sorted(Objective.kinds), 'anyformer.parts.mixers.mamba' in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    kinds, others = json.loads(done.stdout)
    classes = catalogue()["classes"].values()
    assert kinds == sorted(row["kind"] for row in classes if row["family"] == "Objective" and row["kind"])
    assert not others


@pytest.mark.parametrize("kind", ["mlp", "window", "adamw"])
def test_the_catalogue_has_the_measures_of_a_kind(kind: str) -> None:
    stored = next(entry for entry in stored_entries() if entry.kind == kind)
    assert measured(next(entry for entry in installed_entries() if entry.kind == kind)).measures == stored.measures


@pytest.mark.parametrize("name", ["small", "lstm-lm"])
def test_the_catalogue_has_the_sizes_of_a_preset(name: str, tool: ModuleType) -> None:
    assert catalogue()["presets"][name] == plain(tool.preset_row(name)), "Run: make rows"
    assert list(catalogue()["presets"]) == list(tool.preset_names()), "Run: make rows"


@pytest.mark.row("SCL-10", clause="the parameter column is computed, not typed")
@pytest.mark.slow
def test_the_catalogue_has_the_sizes_of_all_presets(tool: ModuleType) -> None:
    assert catalogue()["presets"] == plain(tool.presets()), "Run: make rows"


@pytest.mark.parametrize("name", ["small", "t5-small", "bigbird-base", "mamba2-130m", "albert-base"])
def test_stand_ins_decode_a_preset_to_the_same_recipe(name: str, suffices: None) -> None:
    mine, real = quick.quick_recipe(name), load_recipe(name)
    assert mine is not None and mine.unchecked == ()
    assert (mine.recipe.to_dict(), mine.origins, mine.name) == (real.recipe.to_dict(), real.origins, real.name)


MISTAKES = [
    ["modle.dim=3"],
    ["model.dmi=3", "train.stpes=4"],
    ["dim=3"],
    ["steps=4"],
    ["learning_rate=3"],
    ["train.lr=0.1"],
    ["model.dim=-1", "model.dropout=1.5"],
    ["model.dim=wide"],
    ["model=3"],
    ["model.stack.depth=2.5"],
    ["model.stack.blocks.layer.branches.0.part.heads=0"],
    ["model.stack.blocks.layer.branches.0.part.kind=atention"],
    ["model.stack.blocks.layer.branches.7.part.heads=2"],
    ["optimizer.lr=0", "optimizer.momentum=2"],
    ["optimizer.kind=adam"],
    ["schedule.floor=yes"],
    ["train.precision=fp8"],
    ["train.steps.x=3"],
    ["train.compile=3"],
    ["format=3"],
    ["x"],
]


@pytest.mark.parametrize("overrides", MISTAKES, ids=" ".join)
def test_a_mistake_is_refused_in_the_words_of_the_real_classes(
    overrides: list[str], suffices: None, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert main(["cost", "small", *overrides]) == 2
    quickly = capsys.readouterr().err
    monkeypatch.setattr(quick, "catalogue_suffices", lambda: False)
    assert main(["cost", "small", *overrides]) == 2
    assert quickly == capsys.readouterr().err


def test_a_mistake_in_a_file_names_the_file(tmp_path: Path, suffices: None, capsys: Capture) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[model]\npreset = "small"\ndepht = 3\n[data.source]\npath = "notes.txt"\n')
    assert main(["cost", str(file)]) == 2
    assert re.search(r"model.depht: Decoder has no such key.*\(from .*mine.toml\)", capsys.readouterr().err)


@pytest.mark.parametrize(
    "override",
    [
        "model.stack.blocks.layer.branches.0.part.heads=6",  # does not divide the width: only the part knows
        "train.steps=3",  # one budget at most: only TrainSpec knows
        "objective.kind=classify",  # the number of classes comes from the data
        "data.source.path=notes.txt",
        "model.kind=encoder",
    ],
)
def test_what_only_code_or_data_can_tell_is_left_to_the_real_classes(override: str, suffices: None) -> None:
    recipe = quick.quick_recipe("small", [override])
    assert recipe is None or recipe.unchecked
    assert quick.recipe_mistakes(read("small", [override])) == []


def test_data_are_refused_where_every_model_would_refuse(tmp_path: Path, suffices: None) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("text")
    with pytest.raises(quick.SpecError, match=r"train\.stpes: TrainSpec has no such key"):
        quick.refuse_mistakes(str(file), ["train.stpes=3"], quick.recipe_mistakes)
    quick.refuse_mistakes(str(file), ["model.dim=32", "data.source.lable=x"], quick.recipe_mistakes)


def test_a_study_is_refused_before_its_data_are_read(suffices: None) -> None:
    for words in (["modle.dim=3"], ["study.sedes=3"], ["study.match=size"], ["train.stpes=3"]):
        with pytest.raises(quick.SpecError, match=words[0].partition(".")[0]):
            quick.refuse_mistakes("small", words, quick.study_mistakes)
    for words in (["armz.x=3"], ["study.seeds=3"], ["model.dmi=3"]):
        quick.refuse_mistakes("small", words, quick.study_mistakes)


VERBS = """
import sys
from anyformer.cli.main import main

for words in sys.argv[1:]:
    main(words.split())
    assert "torch" not in sys.modules, words

main(["cost", "small", "-q"])
heavy = {"torch._dynamo", "anyformer.parts.mixers.mamba", "anyformer.optim"}
assert not heavy & set(sys.modules), "cost imports the compiler or all parts"

from anyformer.core import ModelSpec, PartSpec, kind_of
assert "anyformer.parts.mixers.rnn" not in sys.modules
kind_of(PartSpec, "rnn")
assert "anyformer.parts.mixers.mamba" not in sys.modules, "a kind is imported with others"
"""


def test_catalogue_verbs_and_mistakes_import_no_torch_and_cost_its_parts_alone() -> None:
    commands = ["parts", "parts attention", "parts --json", "presets", "presets --json", "config schema"]
    commands += ["config show gpt2 model.dim=512", "config check small", "config diff gpt2 gpt2-xl"]
    commands += [f"{verb} small modle.dim=3" for verb in ("train", "compare", "scale", "cost", "config check")]
    result = subprocess.run([sys.executable, "-c", VERBS, *commands], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("modle: Recipe has no such key. Did you mean 'model'?") == 5


LIBRARY = """
import sys
from anyformer.core.schema import schema
from anyformer.core.stand_ins import stand_ins
stored = schema(stand_ins()["Recipe"])

import anyformer.run
anyformer.__all__
heavy = {"torch.distributed.tensor", "torch.distributed.checkpoint", "torch._dynamo", "sympy"}
assert not heavy & set(sys.modules), "anyformer.run imports what takes seconds"

from anyformer.training import Recipe
assert stored == schema(Recipe), "stand-ins have another schema"
"""


def test_stand_ins_have_the_schema_of_the_real_classes_and_slow_imports_wait_for_their_first_use() -> None:
    """In a process of its own: kinds that other tests define are not known there."""
    result = subprocess.run([sys.executable, "-c", LIBRARY], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_an_edited_class_is_read_as_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "fields_digest", lambda module, name: "edited")
    monkeypatch.delitem(sys.modules, "torch")
    assert not discovery.catalogue_suffices()
