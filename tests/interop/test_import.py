"""An imported model as a run: the verb, the folder, and the verbs that use it."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from tests.interop.folders import CASES, VOCAB, write_tokenizer

import anyformer
from anyformer.cli.main import main
from anyformer.data.tokenizers.tokenizer import Tokenizer
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
    run = anyformer.from_pretrained(gpt2[0], tmp_path / "run")
    assert {run.tokenizer.words.pad, run.tokenizer.words.bos, run.tokenizer.words.mask} == {0}
    again = Tokenizer.load(run.folder / "tokenizer.json", sentinels=100)  # as a run that starts with its weights does
    assert run.tokenizer.words.size == again.words.size == VOCAB


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


def test_a_body_embeds_with_its_special_tokens_as_transformers_does(transformers: ModuleType, tmp_path: Path) -> None:
    peer = CASES["bert_with_pooler"].make(transformers, tmp_path)
    write_tokenizer(tmp_path, "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    run = anyformer.from_pretrained(tmp_path, tmp_path / "run")
    words = run.tokenizer.words
    assert (words.cls, words.sep, words.mask, words.eos) == (2, 3, 4, 3)
    ids = [[words.cls, *run.tokenizer.encode(text), words.sep] for text in ("axu", "byv cxw")]
    pooled = [torch.nn.functional.normalize(peer(torch.tensor([row])).pooler_output[0], dim=0) for row in ids]
    assert np.allclose(run.embed(["axu", "byv cxw"]), torch.stack(pooled).detach().numpy(), atol=1e-5)


def test_a_masked_language_model_fills_gaps_as_transformers_does(transformers: ModuleType, tmp_path: Path) -> None:
    peer = CASES["roberta"].make(transformers, tmp_path)
    write_tokenizer(tmp_path, "<s>", "<pad>", "</s>", "<unk>", "<mask>")
    run = anyformer.from_pretrained(tmp_path, tmp_path / "run")
    words = run.tokenizer.words
    assert (words.cls, words.pad, words.sep, words.mask) == (0, 1, 2, 4)
    ids = [
        words.cls,
        *run.tokenizer.encode("axu"),
        words.mask,
        *run.tokenizer.encode(" byv"),
        words.sep,
    ]  # a gap has its space
    logits = peer(torch.tensor([ids])).logits[0, ids.index(words.mask)]
    logits[list(words.special)] = -torch.inf  # which fill never guesses
    guesses = [guess.text for guess in run.fill(["axu <mask> byv"], top=3)[0].gaps[0]]
    assert guesses == [run.tokenizer.decode([index]) for index in logits.topk(3).indices.tolist()]


def test_a_translator_writes_what_transformers_writes(transformers: ModuleType, tmp_path: Path) -> None:
    peer = CASES["t5"].make(transformers, tmp_path)
    write_tokenizer(tmp_path, "<pad>", "</s>", "<unk>")
    run = anyformer.from_pretrained(tmp_path, tmp_path / "run")
    source = torch.tensor([[*run.tokenizer.encode("axu byv"), 1]])
    # transformers makes its cache for as many layers as the encoder has
    expected = peer.generate(source, do_sample=False, max_new_tokens=6, decoder_start_token_id=0, use_cache=False)
    text = run.generate(["axu byv"], GenerationConfig(sampler=Greedy(), max_new=6))
    assert text == [run.tokenizer.decode(expected[0, 1:].tolist())]


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
