"""A run, read as docs/formats.md says, with the standard library and safetensors alone; anyformer only made it."""

import hashlib
import json
import math
import re
import struct
import tomllib
from datetime import datetime
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from safetensors import safe_open
from tests.training.small import tiny

from anyformer.cli.output.runs_table import line as describe_run
from anyformer.reporting.run_facts import RunFacts
from anyformer.reporting.run_files import RunFiles
from anyformer.training import load
from anyformer.training.loop.budget import Progress, Step
from anyformer.training.runs.run_folder import line

DOCUMENT = (Path(__file__).parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")


@cache
def run() -> Path:
    return tiny(Path(mkdtemp()), "run", "sample.every=3", "train.ema=0.9").folder


def objects(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def newest() -> Path:
    return run() / "checkpoints" / (run() / "LATEST").read_text().strip()


def test_the_manifest_vouches_for_every_file_of_the_checkpoint() -> None:
    manifest = json.loads((newest() / "MANIFEST.json").read_text())
    inside = {path.name for path in newest().iterdir()} - {"MANIFEST.json"}
    assert manifest["format"] == 1 and manifest["files"].keys() == inside
    for name, entry in manifest["files"].items():
        content = (newest() / name).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (entry["bytes"], entry["sha256"])


def test_the_weights_are_those_of_the_model_that_the_recipe_describes() -> None:
    with safe_open(newest() / "model.safetensors", framework="numpy") as file:
        stored = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        assert all(math.isfinite(float(file.get_tensor(name).sum())) for name in stored)
    model = load(run() / "recipe.toml").build(device="meta")
    assert stored == {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def test_the_averages_bear_the_names_of_the_weights() -> None:
    with safe_open(newest() / "model.safetensors", framework="numpy") as file, \
         safe_open(newest() / "ema.safetensors", framework="numpy") as averages:  # fmt: skip
        weights, found = set(file.keys()), set(averages.keys())
    assert {name.removeprefix("model.") for name in found if name.startswith("model.")} <= weights


def test_the_state_says_how_far_the_run_is() -> None:
    state = json.loads((newest() / "state.json").read_text())
    assert state["format"] == 1 and state["complete"] is True
    assert state["progress"]["step"] == int(newest().name.removeprefix("step-")) == 6
    assert state["progress"]["tokens"] == [it for it in objects(run() / "metrics.jsonl") if "loss" in it][-1]["tokens"]


def test_metrics_are_lines_of_two_kinds() -> None:
    for found in objects(run() / "metrics.jsonl"):
        if "valid_loss" in found:
            assert found.keys() == {"step", "valid_loss", "valid_terms"}
            assert math.isclose(sum(found["valid_terms"].values()), found["valid_loss"])
        else:
            assert found.keys() == line(Step(**{name: 0 for name in _fields(Step) if name != "terms"})).keys()


def test_events_are_a_time_a_word_and_an_object() -> None:
    for text in (run() / "events.log").read_text().splitlines():
        time, word, facts = text.split(" ", 2)
        datetime.fromisoformat(time)
        assert re.fullmatch("[a-z_]+", word) and isinstance(json.loads(facts), dict)
    assert text.split()[1] == "finished"


def test_the_recipe_leaves_nothing_open_and_every_value_has_an_origin() -> None:
    recipe = tomllib.loads((run() / "recipe.toml").read_text())
    origins = json.loads((run() / "sources.json").read_text())
    assert recipe["format"] == 2 and recipe["train"]["steps"] == 6
    assert origins["train.steps"] == "command line" and origins["model.vocab"] == "data"


def test_samples_are_lines_of_a_prompt_and_a_text() -> None:
    files = sorted((run() / "samples").iterdir())
    assert [file.name for file in files] == ["step-000003.jsonl", "step-000006.jsonl"]
    assert all(found.keys() == {"prompt", "text"} for file in files for found in objects(file))


def test_the_document_names_every_file_and_every_field() -> None:
    names = {path.name for path in run().rglob("*") if path.is_file() and not path.name.startswith("step-")}
    metrics = {key for found in objects(run() / "metrics.jsonl") for key in found}
    environment = json.loads((run() / "environment.json").read_text())
    for name in {*names, *metrics, *environment, *environment["data"], *_fields(Progress)}:
        assert f"`{name}`" in DOCUMENT, name


def test_the_document_names_every_field_of_what_runs_and_report_print() -> None:
    report = RunFacts.of(run()).to_dict()
    inside = (report["predicted"], report["measured"], *report["curves"]["train"][:1], *report["curves"]["valid"][:1])
    for name in {*report, *describe_run(RunFiles(run())), *(key for table in inside for key in table)}:
        assert f"`{name}`" in DOCUMENT, name


def test_prepared_data_are_flat_files_of_numbers_and_an_index() -> None:
    folder = next((run().parent / "cache").glob("*/manifest.json")).parent
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    counts, entries = manifest["facts"]["splits"]["train"], manifest["files"]
    columns = {}
    for name, code in (("train.tokens.bin", "H"), ("train.tokens.index.bin", "q")):
        content = (folder / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == entries[name]["sha256"]
        columns[name] = struct.unpack(f"<{entries[name]['count']}{code}", content)
    tokens, index = columns["train.tokens.bin"], columns["train.tokens.index.bin"]
    assert entries["train.tokens.bin"]["dtype"] == "uint16"
    assert index[0] == 0 and index[-1] == len(tokens) == counts["tokens"] and len(index) == counts["samples"] + 1
    names = {it["id"]: it["content"] for it in json.loads((folder / "tokenizer.json").read_text())["added_tokens"]}
    assert [names.get(tokens[end - 1]) for end in index[1:]].count("<eos>") == counts["documents"]


def _fields(cls: Any) -> list[str]:
    return list(cls.__dataclass_fields__)
