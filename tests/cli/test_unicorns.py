"""The demo of GPT-2: the command of the recipe continues the prompt about unicorns by sampling."""

import json
import re
import shlex
from pathlib import Path

import pytest
from tests.evaluation.runs import file

from anyformer.cli.main import main

RECIPE = Path(__file__).parents[2] / "recipes/language-model.toml"
SMALL = ("model.preset=gpt2", "model.dim=32", "model.stack.depth=1", "model.stack.blocks.layer.branches.0.part.heads=2")
SHORT = ("data.tokenizer.kind=byte", "data.context=64", "train.steps=4", "train.batch_tokens=512", "sample.tokens=1")


@pytest.mark.row("PRE-20", clause="a demo continues a prompt (the unicorn prompt) by sampling")
def test_a_small_gpt2_continues_the_unicorn_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["train", str(file("texts")), *SMALL, *SHORT, "--out", "runs/language-model", "--quiet"]) == 0
    command = re.search(r"^#   anyformer (generate .*)$", RECIPE.read_text(encoding="utf-8"), re.MULTILINE)
    assert command is not None and "unicorns" in command[1]
    capsys.readouterr()
    answers = []
    for seed in ("1", "1", "2"):
        assert main([*shlex.split(command[1]), "--json", "--max-new", "20", "--seed", seed]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert answers[0]["prompt"].startswith("In a shocking finding")
    assert answers[0]["text"] == answers[1]["text"] != answers[2]["text"]
    assert len(answers[0]["text"]) > 10
