"""A Hugging Face folder or a GGUF file as the start of a run, without an import before."""

import json
from pathlib import Path
from types import ModuleType

import pytest
import torch
from tests.interop.folders import CASES, write_tokenizer
from tests.interop.gguf_files import TEMPLATE as GGUF_TEMPLATE
from tests.interop.gguf_files import write_gguf

from anyformer.cli.main import main
from anyformer.errors import AnyformerError
from anyformer.pretrained import from_pretrained
from anyformer.run import Run, train

ROWS = [
    {"text": f"axu {word} bxu {word}", "label": ("one", "two")[n % 2]} for n, word in enumerate(["byv", "cxu"] * 40)
]
SHORT = ("train.steps=2", "train.batch_tokens=256", "data.valid=0.2", "optimizer.lr=1e-9", "sample.tokens=1")


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    file = tmp_path / "labels.jsonl"
    file.write_text("\n".join(map(json.dumps, ROWS)))
    return file


@pytest.mark.parametrize("kind", ["bert", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_a_hugging_face_folder_is_fine_tuned_directly(
    kind: str, labelled: Path, transformers: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    CASES[kind].make(transformers, tmp_path / "theirs")
    write_tokenizer(tmp_path / "theirs", "<|endoftext|>")
    words = ["train", str(labelled), *SHORT, f"init_from={tmp_path / 'theirs'}", "--out", str(tmp_path / "ours")]
    assert main(words) == 0
    shown = capsys.readouterr()
    line = next(line for line in (shown.out + shown.err).splitlines() if "init_from=" in line and "tensors" in line)
    assert "start with the weights of theirs." in line and "New: head.classes (2)." in line
    run = Run.open(tmp_path / "ours")
    assert run.tokenizer.words.size <= run.recipe.model.input_stack.vocabulary  # no token was added
    weights = transformers.AutoModel.from_pretrained(tmp_path / "theirs").get_input_embeddings().weight
    torch.testing.assert_close(run.model().state_dict()["embedding.weight"], weights.detach(), atol=1e-6, rtol=0)
    assert run.classify(["axu bxu"])[0].label in ("one", "two")


def test_a_folder_without_a_tokenizer_needs_one_by_name(
    labelled: Path, transformers: ModuleType, tmp_path: Path
) -> None:
    CASES["bert"].make(transformers, tmp_path / "theirs")
    with pytest.raises(AnyformerError, match=r"has no tokenizer\.json.*data\.tokenizer\.path"):
        train(labelled, *SHORT, init_from=tmp_path / "theirs", out=tmp_path / "ours", cache=tmp_path / "cache")


def test_a_broken_folder_is_refused_before_the_data_are_read(labelled: Path, tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "bert", "auto_map": {"AutoModel": "evil.py"}}')
    with pytest.raises(AnyformerError, match=r"init_from=.*theirs"):
        train(labelled, *SHORT, init_from=folder, out=tmp_path / "ours", cache=tmp_path / "cache")
    assert not (tmp_path / "ours").exists()


TEMPLATE = "{% for message in messages %}{{ message.role }}\n{{ message.content }}{{ eos_token }}{% endfor %}"


@pytest.mark.parametrize(
    "place", ["chat_template.jinja", "several", pytest.param("tokenizer_config.json", marks=pytest.mark.slow)]
)
def test_the_chat_template_comes_along(
    place: str, transformers: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    CASES["gpt2"].make(transformers, tmp_path / "theirs")
    write_tokenizer(tmp_path / "theirs", "<|endoftext|>")
    named = [{"name": "tools", "template": "no"}, {"name": "default", "template": TEMPLATE}]
    config = {"eos_token": "<|endoftext|>", "chat_template": named if place == "several" else TEMPLATE}
    file = tmp_path / "theirs" / ("tokenizer_config.json" if place == "several" else place)
    file.write_text(TEMPLATE if file.suffix == ".jinja" else json.dumps(config))
    run = from_pretrained(tmp_path / "theirs", tmp_path / "imported")
    assert (run.folder / "chat_template.jinja").read_text() == TEMPLATE
    rows = [{"messages": [{"role": "user", "content": "axu"}, {"role": "assistant", "content": "bxu"}]}] * 20
    (tmp_path / "chat.jsonl").write_text("\n".join(map(json.dumps, rows)))
    tuned = train(
        tmp_path / "chat.jsonl", *SHORT, "data.valid=0", init_from=tmp_path / "theirs", out=tmp_path / "ours",
        cache=tmp_path / "cache",
    )  # fmt: skip
    assert tuned.recipe.data is not None and tuned.recipe.data.source.chat_template == TEMPLATE
    assert main(["evaluate", str(run.folder), str(tmp_path / "chat.jsonl")]) == 0
    assert "was imported" in capsys.readouterr().err


@pytest.fixture
def gguf_file(transformers: ModuleType, tmp_path: Path) -> tuple[Path, torch.Tensor]:
    """A small GGUF file of a llama, and the weights of its embedding."""
    library = pytest.importorskip("gguf", reason="the file is written by the gguf package")
    peer = CASES["llama"].make(transformers, tmp_path / "folder")
    write_gguf(library, tmp_path / "tiny.gguf", peer)
    return tmp_path / "tiny.gguf", peer.get_input_embeddings().weight.detach()


def test_a_gguf_file_is_fine_tuned_directly_and_resumed(gguf_file: tuple[Path, torch.Tensor], tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": "axu"}, {"role": "assistant", "content": "bxu"}]}] * 40
    (tmp_path / "chat.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = ["train", str(tmp_path / "chat.jsonl"), *SHORT, "--out", str(tmp_path / "ours")]
    assert main([*words, f"init_from={gguf_file[0]}"]) == 0
    run, imported = Run.open(tmp_path / "ours"), from_pretrained(gguf_file[0], tmp_path / "imported")
    assert run.recipe.objective is not None and run.recipe.objective.kind == "chat"
    assert run.recipe.data is not None and run.recipe.data.source.chat_template == GGUF_TEMPLATE
    assert run.tokenizer.fingerprint() == imported.tokenizer.fingerprint()
    torch.testing.assert_close(run.model().state_dict()["embedding.weight"], gguf_file[1], atol=1e-6, rtol=0)
    assert main(["train", str(tmp_path / "ours"), "--resume", "schedule.kind=constant"]) == 2
    assert main(["train", str(tmp_path / "ours"), "--resume"]) == 0


def test_a_gguf_file_gets_the_head_that_the_task_needs(
    gguf_file: tuple[Path, torch.Tensor], labelled: Path, tmp_path: Path
) -> None:
    run = train(labelled, *SHORT, init_from=gguf_file[0], out=tmp_path / "ours", cache=tmp_path / "cache")
    assert run.classify(["axu bxu"])[0].label in ("one", "two")
    torch.testing.assert_close(run.model().state_dict()["embedding.weight"], gguf_file[1], atol=1e-6, rtol=0)


@pytest.mark.parametrize("damage", ["cut", "other", "missing"])
def test_a_broken_gguf_file_is_refused_before_the_data_are_read(
    damage: str, gguf_file: tuple[Path, torch.Tensor], labelled: Path, tmp_path: Path
) -> None:
    file = tmp_path / {"cut": "cut.gguf", "other": "model.onnx", "missing": "none.gguf"}[damage]
    if damage != "missing":
        file.write_bytes(gguf_file[0].read_bytes()[:-100])
    with pytest.raises(AnyformerError, match=rf"init_from=.*{file.name}"):
        train(labelled, *SHORT, init_from=file, out=tmp_path / "ours", cache=tmp_path / "cache")
    assert not (tmp_path / "ours").exists()
