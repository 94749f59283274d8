"""An imported model as a run: the verb, the folder, and the verbs that use it."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.interop.folders import CASES, VOCAB, write_tokenizer

import anyformer
from anyformer.cli.main import main
from anyformer.errors import CheckpointError, SpecError
from anyformer.generation.samplers.greedy import Greedy
from anyformer.inference.text_generator import GenerationConfig


@pytest.fixture(scope="module")
def gpt2(transformers: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    peer = CASES["gpt2"].make(transformers, folder)
    write_tokenizer(folder, "<|endoftext|>")
    return folder, peer


def test_the_verb_prints_the_largest_difference_and_writes_a_run(
    gpt2: tuple[Path, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, peer = gpt2
    assert main(["import", str(source), "--out", str(tmp_path / "run"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["largest_difference"] < 1e-5 and facts["tokenizer"]
    assert facts["params"] == sum(parameter.numel() for parameter in peer.parameters())
    assert main(["generate", str(tmp_path / "run"), "axu bxu", "--max-new", "3"]) == 0
    assert main(["cost", str(tmp_path / "run")]) == 0
    assert main(["runs", str(tmp_path)]) == 0


def test_a_run_generates_what_transformers_generates(gpt2: tuple[Path, Any], tmp_path: Path) -> None:
    source, peer = gpt2
    run = anyformer.from_pretrained(source, tmp_path / "run")
    ids = [run.tokenizer.words.bos, *run.tokenizer.encode("axu byv")]
    start = torch.tensor([ids])
    expected = peer.generate(start, attention_mask=torch.ones_like(start), do_sample=False, max_new_tokens=6)
    text = run.generate(["axu byv"], GenerationConfig(sampler=Greedy(), max_new=6))
    assert text == [run.tokenizer.decode(expected[0, len(ids) :].tolist())]


def test_roles_without_a_token_share_the_end_of_text_and_no_id_is_added(gpt2: tuple[Path, Any], tmp_path: Path) -> None:
    words = anyformer.from_pretrained(gpt2[0], tmp_path / "run").tokenizer.words
    assert words.size == VOCAB
    assert {words.pad, words.bos, words.eos, words.mask} == {0}


def test_the_same_folder_is_imported_once(gpt2: tuple[Path, Any], tmp_path: Path) -> None:
    first = anyformer.from_pretrained(gpt2[0], tmp_path / "run")
    stamp = first.newest.stat().st_mtime_ns
    assert anyformer.from_pretrained(gpt2[0], tmp_path / "run").newest.stat().st_mtime_ns == stamp


def test_an_imported_run_has_no_training_to_resume(gpt2: tuple[Path, Any], tmp_path: Path) -> None:
    anyformer.from_pretrained(gpt2[0], tmp_path / "run")
    with pytest.raises(SpecError, match="was imported"):
        anyformer.train(str(tmp_path / "run"), resume=True)


def test_without_transformers_it_says_that_outputs_were_not_compared(
    gpt2: tuple[Path, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert main(["import", str(gpt2[0]), "--out", str(tmp_path / "run")]) == 0
    assert "not compared with transformers" in capsys.readouterr().out


def test_sharded_weights_are_the_same_model(transformers: ModuleType, tmp_path: Path) -> None:
    peer = CASES["gpt2"].make(transformers, tmp_path / "whole")
    peer.save_pretrained(tmp_path / "parts", max_shard_size="20KB")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 2
    whole, parts = (anyformer.from_pretrained(tmp_path / name, tmp_path / f"{name}-run") for name in ("whole", "parts"))
    ours, theirs = whole.model().state_dict(), parts.model().state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_weights_that_differ_from_the_config_leave_no_run_behind(gpt2: tuple[Path, Any], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes((gpt2[0] / "model.safetensors").read_bytes())
    config = json.loads((gpt2[0] / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "n_embd": 64, "n_layer": 2}))
    with pytest.raises(CheckpointError, match=r"wte.weight has shape \(300, 32\), the config describes \(300, 64\)"):
        anyformer.from_pretrained(folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()
