"""`anyformer cost`: the card says what `anyformer.cost` counts."""

import json
from pathlib import Path
from typing import Any

import pytest

import anyformer
from anyformer.cli.main import main
from anyformer.data.preparation.pipeline import prepare
from anyformer.training.recipes.resolve import data_of, draft

Capture = pytest.CaptureFixture[str]
KEYS = {"name", "params", "flops_forward", "flops_backward", "activation_bytes", "state_bytes_per_token", "parts"}
KEYS |= {"state_bytes", "batch", "length", "source", "past", "vocabulary"}


def answer(capsys: Capture, *arguments: str) -> Any:
    assert main(["cost", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def card(capsys: Capture, *arguments: str) -> str:
    assert main(["cost", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.row("CLM-28", clause="a calculator gives parameters, memory and training FLOPs")
@pytest.mark.parametrize("target", ["small", "t5-small"])
def test_the_json_is_what_cost_counts(target: str, capsys: Capture) -> None:
    found = answer(capsys, target, "--batch", "2", "--length", "32", "--source", "48")
    source = found["source"]
    assert source == (48 if target == "t5-small" else None)
    total = anyformer.cost(anyformer.load(target), anyformer.Work(batch=2, length=32, source=source)).total
    assert found.keys() == KEYS
    assert {key: found[key] for key in vars(total)} == vars(total)
    assert (found["name"], found["batch"], found["length"], found["past"]) == (target, 2, 32, 0)


def test_the_vocabulary_is_that_of_the_data_or_says_whose_it_is(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "a.txt").write_text("".join(f"line number {n} of a text\n" for n in range(200)))
    source = f'[model]\npreset = "small"\n[data.source]\nkind = "text"\npath = "{tmp_path / "a.txt"}"\n'
    (tmp_path / "r.toml").write_text(source)
    (tmp_path / "gone.toml").write_text(source.replace("a.txt", "gone.txt"))
    recipe, data = str(tmp_path / "r.toml"), str(tmp_path / "a.txt")
    tokens = prepare(data_of(draft(recipe)), tmp_path / "prepared").words.size
    found = answer(capsys, recipe)
    assert found["vocabulary"] == tokens < 8192
    assert found["params"] - answer(capsys, "small")["params"] == (tokens - 256) * 256
    assert answer(capsys, data, "data.tokenizer.kind=bpe")["vocabulary"] == tokens
    assert f"{tokens:,} tokens (of the tokenizer bpe on its data)" in card(capsys, recipe, "--quiet")
    assert "8,192 tokens (expected; the data cannot be read" in card(capsys, str(tmp_path / "gone.toml"), "--quiet")
    assert "256 tokens (of the preset small; in training," in card(capsys, "small", "--quiet")
    assert "999 tokens\n" in "\n".join(map(str.rstrip, card(capsys, "small", "model.vocab=999", "-q").splitlines()))


@pytest.mark.parametrize("key", ["params", "flops_forward", "flops_backward"])
def test_the_parts_add_up_to_the_totals(key: str, capsys: Capture) -> None:
    found = answer(capsys, "small", "--length", "32")
    assert sum(part[key] for part in found["parts"]) == found[key]
    (stack,) = (part for part in found["parts"] if part["name"] == "stack")
    assert sum(part[key] for part in stack["children"]) == stack[key]
    assert stack.keys() == {"name", "kind", "params", "flops_forward", "flops_backward", "calls", "children"}


def test_overrides_change_the_model_that_is_counted(capsys: Capture) -> None:
    found = answer(capsys, "small", "model.dim=64", "model.stack.depth=2", "--length", "8")
    model = anyformer.load("small", "model.dim=64", "model.stack.depth=2")
    assert found["params"] == sum(parameter.numel() for parameter in model.build(device="meta").parameters())


def test_the_length_is_what_the_model_is_made_for_up_to_1024(capsys: Capture) -> None:
    assert answer(capsys, "small", "model.max_len=100")["length"] == 100
    assert answer(capsys, "small", "model.max_len=4096", "model.stack.depth=1")["length"] == 1024
    assert "length 100" in card(capsys, "small", "model.max_len=100", "--quiet")


def test_a_past_asks_for_one_step_of_decoding(capsys: Capture) -> None:
    step = answer(capsys, "small", "--past", "15")
    assert (step["length"], step["past"]) == (1, 15)
    assert step["flops_forward"] < answer(capsys, "small", "--length", "16")["flops_forward"] / 8


def test_equal_layers_are_one_row_that_stands_for_all(capsys: Capture) -> None:
    text = card(capsys, "small", "--length", "16")
    assert text.count("Attention") == 1
    assert "layers.0-5 x6" in text
    assert "4,222,208 (4.22 M)" in text


def test_layers_that_alternate_fold_by_kind(tmp_path: Path, capsys: Capture) -> None:
    text = '[model]\nkind = "decoder"\nvocab = 9\ndim = 8\n[model.stack]\ndepth = 6\n'
    for name in ("glu", "mlp"):
        text += f'[model.stack.blocks.{name}]\nbranches = [{{ part = {{ kind = "{name}" }} }}]\n'
    (tmp_path / "mine.toml").write_text(text)
    shown = card(capsys, str(tmp_path / "mine.toml"))
    assert "layers.0,2,4 x3" in shown
    assert "layers.1,3,5 x3" in shown


def test_a_shared_block_says_how_often_it_is_called(capsys: Capture) -> None:
    text = card(capsys, "small", "model.stack.blocks.layer.share=all", "--length", "16")
    assert "layers.shared/all called 6 times" in text
    assert text.count("called") == 1


def test_depth_and_quiet_show_less(capsys: Capture) -> None:
    small = ("small", "model.stack.depth=2")
    full, flat = card(capsys, *small), card(capsys, *small, "--depth", "1")
    totals = card(capsys, *small, "--depth", "0")
    assert "qkv" in full
    assert "layers" not in flat
    assert "stack" in flat
    assert "embedding" not in totals
    assert totals == card(capsys, *small, "--quiet")


@pytest.mark.parametrize("columns", ["80", "120"])
def test_the_card_fits_the_terminal(columns: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    text = card(capsys, "t5-small", "--length", "16")
    assert max(map(len, text.splitlines())) <= int(columns)
    assert "…" not in text


LAYER = 12 * 12_288**2 + 13 * 12_288
"""Parameters of a layer of GPT-3: attention 4 d^2, net 8 d^2, their biases and two norms."""


@pytest.mark.parametrize("depth", [2, pytest.param(96, marks=pytest.mark.slow)])
def test_the_largest_preset_is_counted_without_a_byte_of_it(depth: int, capsys: Capture) -> None:
    """Two layers would take 17 GB. All 96 are counted by the slow suite."""
    found = answer(capsys, "gpt3", "--length", "8", f"model.stack.depth={depth}")
    assert found["params"] == 174_604_259_328 - (96 - depth) * LAYER


def test_a_model_that_cannot_be_built_is_told_where(capsys: Capture) -> None:
    assert main(["cost", "small", "model.dim=100"]) == 2
    assert "error: model.stack.blocks.layer.branches[0].part: heads=8 must divide dim=100" in capsys.readouterr().err


def test_what_no_number_can_count_is_refused(capsys: Capture) -> None:
    assert main(["cost", "small", "--batch", str(10**15)]) == 2
    assert "more bytes than 64 bits" in capsys.readouterr().err


def test_a_narrow_terminal_leaves_out_columns_of_the_parts(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    assert main(["cost", "transformer-base", "--length", "8"]) == 0
    shown, notes = capsys.readouterr()
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown and "not shown in 50 columns: kind" in notes
