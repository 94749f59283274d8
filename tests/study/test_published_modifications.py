"""The published table of the modification study and its protocol, compared with the models and the recipe here."""

import csv
import tomllib
from pathlib import Path
from typing import Any

import pytest

from anyformer.core import ModelSpec, decode
from anyformer.core.discovery import catalogue
from anyformer.core.plain_data import assign
from anyformer.data.record import SourceSpec
from anyformer.data.tokenizers.unigram import Unigram
from anyformer.study.study import read_study
from anyformer.training import load

ROOT = Path(__file__).parents[2]
SPECIFICATION = ROOT.parent / "shared" / "spec" / "rows.md"
TABLE = list(csv.DictReader((ROOT / "docs/results/modifications-published.csv").read_text("utf-8").splitlines()))
PROTOCOL: dict[str, Any] = tomllib.loads((ROOT / "docs/results/modifications-published.toml").read_text("utf-8"))
COUNTED = {name: facts["cost"] for name, facts in catalogue()["presets"].items()}
NUMBERS = ["params", "ops", "step/s", "early loss", "final loss", "SGLUE", "XSum", "WebQ", "WMT EnDe"]
FEED_FORWARD = ("encoder.stack.blocks.layer.branches.1.part", "decoder.stack.blocks.layer.branches.2.part")
GLU = {"GLU": "sigmoid", "GeGLU": "gelu", "ReGLU": "relu", "SwiGLU": "silu", "LiGLU": "identity"}


def number(text: str) -> float:
    return float(text.rstrip("MT"))


def row(**marks: str) -> pytest.MarkDecorator:
    return pytest.mark.row("NAR-00", **marks)


@pytest.mark.row(
    "NAR-53",
    clause=(
        "garbled headers read final loss, SGLUE, XSum, WebQ and EnDe",
        "every column is present, SGLUE, XSum, WebQ and WMT EnDe among them",
    ),
)
def test_every_row_has_a_number_in_every_column_and_garbled_headings_name_one() -> None:
    assert len(TABLE) == 52
    assert list(TABLE[0]) == ["model", "preset", *NUMBERS]
    assert all(number(line[column]) > 0 for line in TABLE for column in NUMBERS)
    restored = {"First loss": "final loss", "SCLUE": "SGLUE", "X8um": "XSum", "Wild": "WebQ", "ExDe": "WMT EnDe"}
    assert PROTOCOL["garbled"] == restored
    assert set(restored.values()) < set(NUMBERS)


@pytest.mark.skipif(not SPECIFICATION.exists(), reason="the specification of the rows is not there")
def test_the_table_is_that_of_the_specification() -> None:
    lines = [
        line.strip("| ").split(" | ") for line in SPECIFICATION.read_text("utf-8").splitlines() if line[:2] == "| "
    ]
    start = next(place for place, cells in enumerate(lines) if cells[0] == "Vanilla Transformer")
    assert [[line["model"], *(line[column] for column in NUMBERS)] for line in TABLE] == lines[start : start + 52]


@pytest.mark.row("NAR-53", clause="every column is present, SGLUE, XSum, WebQ and WMT EnDe among them")
def test_the_study_at_small_scale_has_a_task_for_every_downstream_column() -> None:
    tasks = read_study(ROOT / "recipes/modifications.toml").downstream
    columns = {"superglue": "SGLUE", "summaries": "XSum", "questions": "WebQ", "translation": "WMT EnDe"}
    assert set(tasks) == set(columns) and set(columns.values()) == set(PROTOCOL["columns"])
    assert tasks["summaries"]["metric"] == PROTOCOL["columns"]["XSum"]["score"] == "rouge2"
    assert tasks["questions"]["metric"] == PROTOCOL["columns"]["WebQ"]["score"] == "exact_match"
    parts = tasks["superglue"]["data"]["source"]["sources"]
    assert [part["task"] for part in parts] == ["boolq", "cb", "copa", "multirc", "record", "rte", "wic", "wsc"]
    few = {**tasks["superglue"]["data"]["source"], "sources": [{**part, "count": 20} for part in parts]}
    for source in (few, {**tasks["questions"]["data"]["source"], "count": 20}):
        assert all(record.target for record in decode(SourceSpec, source).records())


@pytest.mark.row("NAR-09", clause="published as the best activation: early loss 2.127, final 1.789")
def test_swiglu_was_published_with_the_lowest_losses_of_all_activations() -> None:
    activations = {line["model"]: line for line in TABLE[:12]}
    assert list(activations)[-1] == "Softplus"
    for column, loss in {"early loss": "2.127", "final loss": "1.789"}.items():
        assert activations["SwiGLU"][column] == loss
        assert min(activations, key=lambda name: float(activations[name][column])) == "SwiGLU"


def model_of(line: dict[str, str]) -> ModelSpec:
    """The model of a published row at full size; rows without a preset change the feed-forward net, norms or joins."""
    if line["preset"]:
        return load(line["preset"])
    data = load("vanilla").to_dict()
    for path in FEED_FORWARD if line["model"] in GLU else ():
        assign(data, path, {"kind": "glu", "hidden": 2048, "activation": GLU[line["model"]], "bias": True})
    for half, branches in {"encoder": 2, "decoder": 3}.items():
        for index in range(branches):
            branch = f"{half}.stack.blocks.layer.branches.{index}"
            if "RMS" in line["model"]:
                assign(data, f"{branch}.norm", {"kind": "rms", "eps": 1e-6})
            if "ReZero" in line["model"]:
                assign(data, f"{branch}.join", {"kind": "rezero"})
    return decode(ModelSpec, data)


@row(clause="full-size counts on the meta device equal the published, to 1.2M")
@pytest.mark.parametrize("line", TABLE, ids=lambda line: line["model"])
def test_a_model_of_full_size_has_the_published_number_of_weights(line: dict[str, str]) -> None:
    if line["preset"]:  # counted on the meta device when the catalogue was written, which a test compares
        weights = COUNTED[line["preset"]]["params"]
    else:
        weights = sum(weight.numel() for weight in model_of(line).build(device="meta").parameters())
    assert abs(weights / 1e6 - number(line["params"])) < 1.2


OTHER_COUNT = {
    "embedding", "embeddings", "softmax", "softmaxes", "mixture", "switch", "funnel", "weighted", "universal",
    "evolved", "product",
}  # fmt: skip
"""Rows whose operations the released counter counts in another way: look-ups, softmaxes, pooled lengths, memories."""


@row(clause="operations are compared as ratios to the baseline, not as absolutes")
def test_operations_relative_to_the_baseline_are_the_published_ones() -> None:
    base, ratios = TABLE[0], {}
    for line in TABLE:
        if line["preset"] and not OTHER_COUNT & set(line["model"].lower().split()):
            ours = COUNTED[line["preset"]]["flops_forward"] / COUNTED["vanilla"]["flops_forward"]
            ratios[line["preset"]] = ours / (number(line["ops"]) / number(base["ops"]))
    assert len(ratios) >= 16
    assert all(abs(ratio - 1) < 0.02 for ratio in ratios.values()), ratios


OTHER_FLOPS = {"vanilla-mixture-of-softmaxes", "vanilla-universal", "vanilla-weighted"}
OTHER_SIZE = ("vanilla-block-sharing", "vanilla-decoder-sharing", "vanilla-universal", "vanilla-experts",
              "vanilla-switch", "vanilla-product-keys")  # fmt: skip
"""Modifications that are meant to have fewer or more parameters; a name stands for all that begin with it."""


@row(clause="parameters and FLOPs of the variants roughly match the baseline's")
def test_modifications_cost_about_as_much_as_the_baseline_or_are_known_for_it() -> None:
    base, names = COUNTED["vanilla"], [line["preset"] for line in TABLE if line["preset"]]
    assert len(names) == 37
    for name in names:
        size, flops = (COUNTED[name][cost] / base[cost] for cost in ("params", "flops_forward"))
        assert (abs(size - 1) < 0.32) != name.startswith(OTHER_SIZE), name
        assert (abs(flops - 1) < 0.25) != (name in OTHER_FLOPS), name


@row(clause="vocabulary of 32128, SentencePiece pieces with 100 sentinels")
def test_the_vocabulary_of_the_baseline_is_that_of_t5() -> None:
    base = PROTOCOL["base"]
    assert base["vocabulary"] == load("vanilla").decoder.vocab == 32_128
    assert base["sentinels"] == Unigram(size=base["vocabulary"]).sentinels == 100
