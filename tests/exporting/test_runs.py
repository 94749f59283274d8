"""The verb on trained runs: transformers reads, classifies and writes what the run does; failures leave nothing."""

import json
import shutil
import signal
import stat
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.exporting import runs
from tests.interop.folders import CASES, write_tokenizer

import anyformer
from anyformer import Run
from anyformer.cli.main import main
from anyformer.errors import CheckpointError
from anyformer.exporting import exporter
from anyformer.exporting.exporter import stored_weights
from anyformer.generation.samplers.greedy import Greedy
from anyformer.inference.text_generator import GenerationConfig
from anyformer.parts.heads.pooled import Pooled
from anyformer.parts.pools.mean import Mean

PROMPTS = ["the fox", "a red tree and", "o"]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return runs.language_model(tmp_path_factory.mktemp("decoder"))


@pytest.fixture(scope="module")
def folder(decoder: Run, transformers: ModuleType) -> Path:
    return anyformer.export(decoder, "hf", decoder.folder.parent / "hf")


def greedy(run: Run, prompts: list[str], max_new: int) -> list[str]:
    return run.generate(prompts, GenerationConfig(sampler=Greedy(), max_new=max_new))


def test_a_pipeline_of_transformers_writes_the_texts_of_the_run(
    transformers: ModuleType, decoder: Run, folder: Path
) -> None:
    pipe = transformers.pipeline("text-generation", model=str(folder))
    options: dict[str, Any] = {"do_sample": False, "max_new_tokens": 12, "return_full_text": False}
    expected = greedy(decoder, PROMPTS, 12)
    assert len(set(expected)) > 1  # the texts say something about the prompts
    assert [pipe(prompt, **options)[0]["generated_text"] for prompt in PROMPTS] == expected
    batch = pipe(PROMPTS, batch_size=3, **options)
    assert [each[0]["generated_text"] for each in batch] == expected


def test_every_file_of_an_export_has_the_permissions_of_a_new_file(folder: Path) -> None:
    (folder.parent / "new").touch()
    modes = {file.name: stat.filemode(file.stat().st_mode) for file in (*folder.iterdir(), folder.parent / "new")}
    assert len(set(modes.values())) == 1, modes


def test_an_export_imported_again_is_the_same_run(decoder: Run, folder: Path, tmp_path: Path) -> None:
    again = anyformer.from_pretrained(folder, tmp_path / "again")
    ours, theirs = decoder.model().state_dict(), again.model().state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert again.tokenizer.encode("the fox") == decoder.tokenizer.encode("the fox")
    assert again.tokenizer.words[:8] == decoder.tokenizer.words[:8]
    assert greedy(again, PROMPTS, 12) == greedy(decoder, PROMPTS, 12)


def test_the_settings_of_generation_are_those_of_the_verb(transformers: ModuleType, folder: Path) -> None:
    config = transformers.GenerationConfig.from_pretrained(folder)
    assert (config.do_sample, config.temperature, config.top_k, config.max_new_tokens) == (True, 0.8, 0, 100)
    assert config.eos_token_id == 3 and config.bos_token_id == 2 and config.pad_token_id == 0


def test_a_classifier_gives_the_classes_and_logits_of_the_run(transformers: ModuleType, tmp_path: Path) -> None:
    run = runs.classifier(tmp_path)
    folder = anyformer.export(run, "hf", tmp_path / "hf")
    pipe = transformers.pipeline("text-classification", model=str(folder))
    texts = ["the fox sees", "a dog"]
    ours = replace_temperature(run).classify(texts)
    for text, label in zip(texts, ours, strict=True):
        scores = {each["label"]: each["score"] for each in pipe(text, top_k=None)}
        assert scores == pytest.approx(dict(label.probabilities), abs=1e-5)


def replace_temperature(run: Run) -> Run:
    """The run without calibration, which transformers knows nothing of."""
    (run.folder / "calibration.json").unlink(missing_ok=True)
    return Run.open(run.folder)


def test_a_translator_writes_the_same_in_transformers(transformers: ModuleType, tmp_path: Path) -> None:
    run = runs.translator(tmp_path)
    folder = anyformer.export(run, "hf", tmp_path / "hf")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    rows = model.generate(**tokenizer(PROMPTS, return_tensors="pt", padding=True), max_new_tokens=9)
    assert tokenizer.batch_decode(rows, skip_special_tokens=True) == greedy(run, PROMPTS, 9)


@pytest.mark.parametrize("name", ["gpt2_body", "roberta", "marian", "mistral_without_window"])
def test_an_import_exported_again_has_the_same_bits(transformers: ModuleType, tmp_path: Path, name: str) -> None:
    CASES[name].make(transformers, tmp_path / "first").to(torch.bfloat16).save_pretrained(tmp_path / "first")
    if name == "roberta":
        write_tokenizer(tmp_path / "first", "<s>", "<pad>", "</s>", "<unk>", "<mask>")
    run = anyformer.from_pretrained(tmp_path / "first", tmp_path / "run")
    folder = anyformer.export(run, "hf", tmp_path / "second")
    first, second = (load_file(each / "model.safetensors") for each in (tmp_path / "first", folder))
    assert first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)
    assert {tensor.dtype for tensor in second.values()} == {torch.bfloat16}
    before, after = (json.loads((each / "config.json").read_text()) for each in (tmp_path / "first", folder))
    assert after["architectures"] == before["architectures"] and after["pad_token_id"] == before["pad_token_id"]


def test_the_verb_prints_facts_and_the_card_has_the_run(decoder: Run, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    assert main(["evaluate", str(decoder.folder), "--quiet"]) == 0
    capsys.readouterr()
    assert main(["export", str(decoder.folder), "--to", "hf", "--out", str(out), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["model"] == "LlamaForCausalLM" and facts["scores"] and facts["largest_difference"] <= 1e-6
    assert facts["largest_difference_from_transformers"] <= 1e-4
    card = (out / "README.md").read_text()
    for words in ("pipeline_tag: text-generation", "95% interval", "bits\\_per\\_byte", "yardstick", "notes.txt",
                  "## Cost", "## Recipe", "[model.stack]", f"{facts['params']:,}"):  # fmt: skip
        assert words in card, words


def test_an_export_is_replaced_only_by_force_and_nothing_else_ever(
    decoder: Run, folder: Path, tmp_path: Path, capsys: Any
) -> None:
    out = shutil.copytree(folder, tmp_path / "out")
    (out / "more.txt").write_text("of the earlier export")
    command = ["export", str(decoder.folder), "--out", str(out), "--quiet"]
    assert main(command) == 2 and "--force" in capsys.readouterr().err and (out / "more.txt").exists()
    assert main([*command, "--force"]) == 0 and capsys.readouterr().out.strip() == str(out)
    assert not (out / "more.txt").exists() and (out / "config.json").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("precious")
    assert main(["export", str(decoder.folder), "--out", str(tmp_path / "mine"), "--force"]) == 2
    assert "is not an export" in capsys.readouterr().err and (tmp_path / "mine" / "notes.txt").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"out", "mine"}


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt, CheckpointError("broken"), OSError(28, "No space left on device")]
)
def test_a_failed_or_interrupted_export_leaves_nothing(
    decoder: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Any, capsys: Any
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(exporter, "_check", fail)  # the last step: all files are written
    code = main(["export", str(decoder.folder), "--out", str(tmp_path / "out")])
    assert code == {KeyboardInterrupt: 130}.get(error, 2 if isinstance(error, CheckpointError) else code) != 0
    assert list(tmp_path.iterdir()) == []


def test_sigterm_leaves_nothing(decoder: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "_check", lambda *_: signal.raise_signal(signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    assert main(["export", str(decoder.folder), "--out", str(tmp_path / "out")]) == 143
    assert list(tmp_path.iterdir()) == [] and signal.getsignal(signal.SIGTERM) == before


def test_a_run_without_a_counterpart_is_refused_before_anything_is_written(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "notes.txt").write_text("\n\n".join(runs.sentences(100)))
    sizes = ["model.preset=gru-lm", "model.dim=16", "model.stack.depth=1", *runs.TINY[1:], "data.context=32"]
    run = anyformer.train(str(tmp_path / "notes.txt"), *sizes, out=tmp_path / "run")
    assert main(["export", str(run.folder), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "part: gru here, mamba there" in error and "--to onnx" in error and not (tmp_path / "out").exists()


def test_mistyped_arguments_are_explained(decoder: Run, tmp_path: Path, capsys: Any) -> None:
    assert main(["export", str(decoder.folder), "--to", "hugging"]) == 2
    assert "onnx" in capsys.readouterr().err
    assert main(["export", str(decoder.folder)[:-1]]) == 2
    assert "no such run" in capsys.readouterr().err
    assert main(["export", str(decoder.folder), "--checkpoint", "7", "--out", str(tmp_path / "out")]) == 2
    assert "no checkpoint of step 7" in capsys.readouterr().err and list(tmp_path.iterdir()) == []


def test_the_weights_are_those_of_the_average_if_there_is_one(decoder: Run) -> None:
    weights, model = stored_weights(decoder, "best"), decoder.model().state_dict()
    assert weights.keys() == model.keys() and all(torch.equal(weights[name], model[name]) for name in model)


def test_an_embedder_becomes_a_folder_of_sentence_transformers(transformers: ModuleType, tmp_path: Path) -> None:
    CASES["eurobert_body"].make(transformers, tmp_path / "body")
    write_tokenizer(tmp_path / "body", "<s>", "<pad>", "</s>", "<unk>", "<mask>")
    body = anyformer.from_pretrained(tmp_path / "body", tmp_path / "run")
    spec = body.recipe.model.with_head(Pooled(pool=Mean()))
    recipe = (
        (body.folder / "recipe.toml").read_text().replace('kind = "hidden"', 'kind = "pooled"\npool = {kind = "mean"}')
    )
    (body.folder / "recipe.toml").write_text(recipe)
    run = Run.open(body.folder)
    assert run.recipe.model == spec
    folder = anyformer.export(run, "hf", tmp_path / "hf")
    again = anyformer.from_pretrained(folder, tmp_path / "again")
    texts = ["axu byv", "cxw"]
    assert np.allclose(run.embed(texts), again.embed(texts), atol=1e-6)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder)
    for text, vector in zip(texts, run.embed(texts), strict=True):
        mean = model(**tokenizer(text, return_tensors="pt")).last_hidden_state.mean(1)
        assert np.allclose(torch.nn.functional.normalize(mean)[0].detach().numpy(), vector, atol=1e-5)


def test_a_chat_template_goes_along(decoder: Run, transformers: ModuleType, tmp_path: Path) -> None:
    run = Run.open(shutil.copytree(decoder.folder, tmp_path / "run"))
    (run.folder / "chat_template.jinja").write_text("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")
    tokenizer = transformers.AutoTokenizer.from_pretrained(anyformer.export(run, "hf", tmp_path / "hf"))
    text = tokenizer.apply_chat_template([{"role": "user", "content": "the fox"}], tokenize=False)
    assert text == "<user>the fox"
