"""Runs whose files were damaged or forged: exit 2 with the file, or an older checkpoint where there is one."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.cli.test_faults import refused
from tests.training.small import tiny

from anyformer.cli.main import main
from anyformer.training.runs.checkpoint import sha256

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with the checkpoints of steps 2 and 4."""
    home = tmp_path_factory.mktemp("trained")
    return tiny(home, "run", "train.steps=4", "model.stack.depth=1").folder


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it to be damaged."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Path(shutil.copytree(trained, tmp_path / "run"))


def newest(run: Path) -> Path:
    return run / "checkpoints" / "step-000004"


def only_one(run: Path) -> None:
    shutil.rmtree(run / "checkpoints" / "step-000002", ignore_errors=True)


def forge(run: Path) -> None:
    """Makes the manifest of the only checkpoint fit its files."""
    only_one(run)
    file = newest(run) / "MANIFEST.json"
    manifest = json.loads(file.read_text())
    for name, entry in manifest["files"].items():
        path = newest(run) / name
        entry.update(bytes=path.stat().st_size, sha256=sha256(path))
    file.write_text(json.dumps(manifest))


@pytest.mark.filterwarnings("default")
def test_every_verb_takes_the_newest_whole_checkpoint_and_says_so(run: Path, capsys: Capture) -> None:
    (newest(run) / "model.safetensors").write_bytes(b"damaged")
    assert main(["generate", str(run), "the cat", "--max-new", "2"]) == 0
    warning = capsys.readouterr().err
    assert warning.startswith("warning: ") and "step-000004/model.safetensors: damaged" in warning
    assert "Using the checkpoint before it: step-000002" in warning


def test_a_run_without_a_whole_checkpoint_is_not_trained_from_the_start(run: Path, capsys: Capture) -> None:
    only_one(run)
    (newest(run) / "model.safetensors").write_bytes(b"damaged")
    metrics = (run / "metrics.jsonl").read_bytes()
    for words in (["train", str(run), "--resume"], ["generate", str(run), "the"], ["evaluate", str(run)]):
        complaint = refused(capsys, 2, *words)
        assert "has no other checkpoint" in complaint and "Going back" not in complaint
    assert (run / "metrics.jsonl").read_bytes() == metrics


HEADERS: dict[str, Callable[[dict[str, dict[str, object]], str], object]] = {
    "overlapping": lambda header, name: header[name].update(data_offsets=[0, 64]),
    "beyond the end": lambda header, name: header[name].update(data_offsets=[1 << 40, (1 << 40) + 64]),
    "backwards": lambda header, name: header[name].update(data_offsets=[64, 0]),
    "shape": lambda header, name: header[name].update(shape=[1 << 40]),
    "dtype": lambda header, name: header[name].update(dtype="F7"),
    "negative shape": lambda header, name: header[name].update(shape=[-1]),
    "no offsets": lambda header, name: header[name].pop("data_offsets"),
}


@pytest.mark.parametrize("lie", [*HEADERS, "length", "not json", "empty", "list"])
def test_a_header_that_lies_is_exit_2_with_the_file(run: Path, capsys: Capture, lie: str) -> None:
    file = newest(run) / "model.safetensors"
    content = file.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
    if lie in HEADERS:
        HEADERS[lie](header, next(name for name in header if name != "__metadata__"))
    text = {"not json": b"{", "list": b"[]"}.get(lie, json.dumps(header).encode())
    length = 1 << 63 if lie == "length" else len(text)
    file.write_bytes(b"" if lie == "empty" else struct.pack("<Q", length) + text + data)
    forge(run)
    assert str(file) in refused(capsys, 2, "generate", str(run), "the")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tensor: tensor.long(), "holds torch.int64"),
        (lambda tensor: tensor.fill_(torch.nan), "not finite"),
        (lambda tensor: tensor.fill_(torch.inf), "not finite"),
        (lambda tensor: tensor[:1].clone(), "has shape"),
    ],
)
@pytest.mark.parametrize("verb", ["generate", "evaluate", "embed"])
def test_weights_that_cannot_be_used_are_named_with_their_tensor(
    run: Path, capsys: Capture, change: Callable[[torch.Tensor], torch.Tensor], words: str, verb: str
) -> None:
    file = newest(run) / "model.safetensors"
    tensors = load_file(file)
    name = max(tensors, key=lambda key: tensors[key].numel())
    save_file({**tensors, name: change(tensors[name])}, file)
    forge(run)
    complaint = refused(capsys, 2, verb, str(run), *(["the cat"] if verb != "evaluate" else []))
    assert str(newest(run)) in complaint and f"{name} h" in complaint and words in complaint


def test_a_tokenizer_that_was_changed_is_refused(run: Path, capsys: Capture) -> None:
    file = run / "tokenizer.json"
    file.write_text(file.read_text().replace('"a"', '"\u00e4"', 1) + " ")
    for words in (["generate", str(run), "the"], ["train", str(run), "--resume"]):
        assert "tokenizer.json: changed since the model was trained with it" in refused(capsys, 2, *words)


def test_a_missing_weights_file_is_named(run: Path, capsys: Capture) -> None:
    only_one(run)
    (newest(run) / "model.safetensors").unlink()
    manifest = json.loads((newest(run) / "MANIFEST.json").read_text())
    del manifest["files"]["model.safetensors"]
    (newest(run) / "MANIFEST.json").write_text(json.dumps(manifest))
    assert "model.safetensors: missing" in refused(capsys, 2, "generate", str(run), "the")
