"""Sentence-embedding folders: the vectors that their modules describe, and modules that are refused."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from tests.interop.folders import BERT, CASES, LLAMA, LONGEST, Case, write_tokenizer
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from torch import Tensor

import anyformer
from anyformer.cli.main import main
from anyformer.errors import CheckpointError
from anyformer.interop.sentence_modules import read_modules

MARKS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
TEXTS = ["axu", "byv cxw dzu", "axu byv cxw dzu exv axw byw czv duxw eyv", "e"]
MODELS = {
    "bert": CASES["bert_with_pooler"],
    "bert_with_words": CASES["bert"],
    "roberta": Case("RobertaModel", {**BERT, "max_position_embeddings": LONGEST + 2, "pad_token_id": 1}),
    "distilbert": Case("DistilBertModel", CASES["distilbert"].options),
    "qwen2": Case("Qwen2Model", LLAMA),
}
POOLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean_tokens": lambda h, mask: (h * mask).sum(1) / mask.sum(1),
    "max_tokens": lambda h, mask: h.masked_fill(mask == 0, -torch.inf).amax(1),
    "cls_token": lambda h, mask: h[:, 0],
    "lasttoken": lambda h, mask: h[torch.arange(len(h)), mask[..., 0].sum(1).long() - 1],
}
"""The poolings of sentence-transformers, on states [b t d] and a mask [b t 1] with the padding on the right."""


def add_modules(folder: Path, pooling: str, *, unit: bool, longest: int = 10) -> None:
    """The files that sentence-transformers writes beside a model."""
    names = ["Transformer", "Pooling", "Normalize"][: 3 if unit else 2]
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{name}"}
        for index, (name, path) in enumerate(zip(names, paths, strict=False))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    modes = {f"pooling_mode_{name}": name == pooling for name in POOLINGS}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **modes}))
    config = {"max_seq_length": longest, "do_lower_case": False}
    (folder / "sentence_bert_config.json").write_text(json.dumps(config))


def add_marks(folder: Path) -> None:
    """[CLS] and [SEP] around each text."""
    write_tokenizer(folder, *MARKS)
    library = Tokenizer.from_file(str(folder / "tokenizer.json"))
    marks = [("[CLS]", 2), ("[SEP]", 3)]
    library.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=marks)
    library.enable_padding(pad_id=0, pad_token="[PAD]")
    library.save(str(folder / "tokenizer.json"))


@torch.no_grad()
def expected(folder: Path, peer: Any, pooling: str, *, unit: bool, longest: int = 10) -> Tensor:
    """The vectors by transformers and the library of the tokenizer, in one padded batch."""
    library = Tokenizer.from_file(str(folder / "tokenizer.json"))
    library.enable_truncation(longest)
    library.enable_padding()
    rows = library.encode_batch(TEXTS)
    mask = torch.tensor([row.attention_mask for row in rows])
    out = peer.base_model(input_ids=torch.tensor([row.ids for row in rows]), attention_mask=mask)
    vectors = POOLINGS[pooling](out.last_hidden_state, mask[..., None].float())
    return torch.nn.functional.normalize(vectors, dim=1) if unit else vectors


@pytest.mark.parametrize(
    ("model", "pooling", "unit"),
    [
        pytest.param("bert", "mean_tokens", True, marks=pytest.mark.slow),
        pytest.param("bert", "mean_tokens", False, marks=pytest.mark.slow),
        ("bert", "cls_token", True),
        ("bert", "max_tokens", False),
        ("bert_with_words", "mean_tokens", True),
        ("roberta", "mean_tokens", True),
        ("distilbert", "mean_tokens", False),
        ("qwen2", "lasttoken", True),
    ],
)
def test_vectors_are_those_that_the_modules_describe(
    transformers: ModuleType, tmp_path: Path, model: str, pooling: str, unit: bool
) -> None:
    folder = tmp_path / "model"
    peer = MODELS[model].make(transformers, folder)
    if model == "qwen2":
        write_tokenizer(folder, "<|endoftext|>")
    else:
        add_marks(folder)
    add_modules(folder, pooling, unit=unit)
    run = anyformer.from_pretrained(folder, tmp_path / "run")
    assert np.allclose(run.embed(TEXTS), expected(folder, peer, pooling, unit=unit).numpy(), atol=1e-5)


def test_the_verbs_embed_and_search_use_the_same_vectors(
    transformers: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, run = tmp_path / "model", str(tmp_path / "run")
    peer = MODELS["bert"].make(transformers, folder)
    add_marks(folder)
    add_modules(folder, "mean_tokens", unit=True)
    assert main(["import", str(folder), "--out", run]) == 0
    assert "largest difference from transformers" in capsys.readouterr().out
    assert main(["embed", run, TEXTS[0], TEXTS[1], "--quiet"]) == 0
    vectors = [json.loads(line)["vector"] for line in capsys.readouterr().out.splitlines()]
    theirs = expected(folder, peer, "mean_tokens", unit=True)
    assert np.allclose(vectors, theirs[:2].numpy(), atol=1e-5)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    assert main(["search", run, str(tmp_path / "texts.txt"), TEXTS[2], "--json", "--top", "2"]) == 0
    hits = json.loads(capsys.readouterr().out)["hits"]
    nearest = (theirs @ theirs[2]).topk(2)
    assert [hit["text"] for hit in hits] == [TEXTS[index] for index in nearest.indices]
    assert np.allclose([hit["score"] for hit in hits], nearest.values.numpy(), atol=1e-5)


def test_special_tokens_that_cannot_be_repeated_are_refused(transformers: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    MODELS["bert"].make(transformers, folder)
    add_marks(folder)
    library = Tokenizer.from_file(str(folder / "tokenizer.json"))
    library.post_processor = TemplateProcessing(single="$A [SEP]", special_tokens=[("[SEP]", 3)])
    library.save(str(folder / "tokenizer.json"))
    add_modules(folder, "mean_tokens", unit=True)
    with pytest.raises(CheckpointError, match=r"puts the ids \[\] before a text and \[3\] behind it"):
        anyformer.from_pretrained(folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def modules(*kinds: str, path: str = "1_Pooling") -> Callable[[Path], object]:
    entries = [{"type": kind, "path": path if index else ""} for index, kind in enumerate(kinds)]
    return lambda folder: (folder / "modules.json").write_text(json.dumps(entries))


def config(name: str, **facts: Any) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(json.dumps(facts))


HERE = "sentence_transformers.models."
REFUSALS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a dense layer": (
        modules(f"{HERE}Transformer", f"{HERE}Pooling", f"{HERE}Dense"),
        "the module 'sentence_transformers.models.Dense' has no counterpart",
    ),
    "code of the folder": (modules("custom.Transformer", f"{HERE}Pooling"), "'custom.Transformer' has no counterpart"),
    "no pooling": (modules(f"{HERE}Transformer"), "the modules must be Transformer, Pooling"),
    "two poolings": (modules(f"{HERE}Transformer", f"{HERE}Pooling", f"{HERE}Pooling"), "the modules must be"),
    "a pooling outside": (modules(f"{HERE}Transformer", f"{HERE}Pooling", path="../x"), "is not the name of a folder"),
    "an absolute path": (modules(f"{HERE}Transformer", f"{HERE}Pooling", path="/etc"), "is not the name of a folder"),
    "an object": (config("modules.json"), "should hold a list of modules"),
    "a list of texts": (lambda folder: (folder / "modules.json").write_text('["x"]'), "should hold a list of modules"),
    "deeply nested": (lambda folder: (folder / "modules.json").write_text("[" * 100_000), "nested too deeply"),
    "two modes": (
        config("1_Pooling/config.json", pooling_mode_cls_token=True, pooling_mode_mean_tokens=True),
        "the pooling must be one of cls, max, mean, lasttoken, got ['cls', 'mean']",
    ),
    "another mode": (config("1_Pooling/config.json", pooling_mode="weightedmean"), "got ['weightedmean']"),
    "an unknown key": (config("1_Pooling/config.json", pooling_mode="mean", pooling_power=3), "pooling_power"),
    "lower case": (config("sentence_bert_config.json", do_lower_case=True), "do_lower_case: must be False"),
    "a prompt": (config("config_sentence_transformers.json", default_prompt_name="query"), "default_prompt_name"),
    "an unknown setting": (config("config_sentence_transformers.json", quantise=8), "quantise: is not a known key"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_module_that_would_change_the_vectors_is_refused_by_name(tmp_path: Path, name: str) -> None:
    add_modules(tmp_path, "mean_tokens", unit=True)
    assert read_modules(tmp_path) is not None
    damage, words = REFUSALS[name]
    damage(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        read_modules(tmp_path)
    assert words in str(caught.value) and str(tmp_path) in str(caught.value)


def test_a_pooling_of_another_width_is_refused(transformers: ModuleType, tmp_path: Path) -> None:
    CASES["bert_with_pooler"].make(transformers, tmp_path)
    add_modules(tmp_path, "mean_tokens", unit=True)
    config("1_Pooling/config.json", word_embedding_dimension=64, pooling_mode="mean")(tmp_path)
    with pytest.raises(CheckpointError, match="pools 64 channels, the model has 32"):
        anyformer.from_pretrained(tmp_path, tmp_path / "run")


def test_newer_folders_name_their_mode_and_length_elsewhere(tmp_path: Path) -> None:
    add_modules(tmp_path, "mean_tokens", unit=True)
    (tmp_path / "sentence_bert_config.json").unlink()
    config("1_Pooling/config.json", embedding_dimension=32, pooling_mode="lasttoken", include_prompt=True)(tmp_path)
    config("tokenizer_config.json", model_max_length=77)(tmp_path)
    sentence = read_modules(tmp_path)
    assert sentence is not None and (sentence.pool.kind, sentence.longest, sentence.width) == ("last", 77, 32)
