"""Broken and malicious folders are refused in one sentence, with little memory, and nothing in them is executed."""

import json
import pickle
import resource
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from anyformer.cli.main import main
from anyformer.core import ModelSpec
from anyformer.errors import CheckpointError
from anyformer.interop.family import known_families
from anyformer.interop.folder import PretrainedFolder
from anyformer.interop.mapping import to_theirs

CONFIG = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 20, "n_positions": 8, "n_embd": 4,
    "n_layer": 1, "n_head": 2,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small valid folder, written without transformers."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    family = known_families()["gpt2"]
    spec: ModelSpec = family.spec(CONFIG, ())
    model = spec.build()
    save_file(to_theirs(family.tensors(spec), model.state_dict()), tmp_path / "model.safetensors")
    PretrainedFolder.open(tmp_path)
    return tmp_path


def configured(**changes: Any) -> Callable[[Path], object]:
    return lambda folder: (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))


def config_text(text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "config.json").write_text(text)


def header(entries: Any, data: bytes = b"", length: int | None = None) -> Callable[[Path], object]:
    text = json.dumps(entries).encode() if not isinstance(entries, bytes) else entries
    start = struct.pack("<Q", len(text) if length is None else length)
    return lambda folder: (folder / "model.safetensors").write_bytes(start + text + data)


def index(**places: str) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "part.safetensors")
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))

    return write


def truncated(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])


def float_row(shape: list[int], end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"wte.weight": {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}}


def peak_bytes() -> int:
    """Largest memory of this process so far; macOS counts it in bytes, Linux in kilobytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


REFUSALS: dict[str, tuple[Callable[[Path], object], str]] = {
    "auto_map": (configured(auto_map={"AutoModel": "evil.Model"}), "names code to be run"),
    "remote code": (configured(trust_remote_code=True), "names code to be run"),
    "unknown key": (configured(attn_windows=4), "attn_windows: is not a known key"),
    "unknown table": (configured(quantization_config={"bits": 4}), "quantization_config.bits: is not a known key"),
    "unsupported value": (configured(scale_attn_by_inverse_layer_idx=True), "must be False, got True"),
    "unknown activation": (configured(activation_function="quick"), "activation_function: 'quick' has no counterpart"),
    "wrong type": (configured(n_head="two"), "heads: expected"),
    "heads that do not divide the width": (configured(n_head=3), "config.json: stack.blocks.layer"),
    "a list for a name": (configured(activation_function=["gelu"]), "activation_function"),
    "other family": (configured(model_type="clip"), "model_type='clip' cannot be imported"),
    "family of a wrong type": (configured(model_type=["gpt2"]), "cannot be imported"),
    "other architecture": (configured(architectures=["GPT2ForSequenceClassification"]), "architectures: must be"),
    "many layers": (configured(n_layer=9999), "transformer.h.1.attn.c_attn.bias is missing"),
    "a vocabulary of a trillion": (configured(vocab_size=10**12), "has shape"),
    "a width beyond all bounds": (configured(n_embd=10**30), "dim"),
    "no JSON": (config_text("{"), "cannot be read as JSON"),
    "deeply nested": (config_text("[" * 100_000), "nested too deeply"),
    "giant": (config_text(json.dumps({"x": "y" * (2 << 20)})), "at most"),
    "not an object": (config_text("[]"), "should hold a JSON object"),
    "not text": (lambda folder: (folder / "config.json").write_bytes(b"\xff\xfe\x00"), "cannot be read as JSON"),
    "header longer than the file": (header({}, length=1 << 40), "truncated"),
    "giant header": (header(b"{" + b" " * (5 << 20) + b"}"), "truncated"),
    "deeply nested header": (header(b"[" * 100_000), "cannot be read as safetensors"),
    "header that is a list": (header([]), "cannot be read as safetensors"),
    "tensor beyond the file": (header(float_row([2, 2], 16), b"1234"), "truncated or damaged"),
    "shape that lies": (header(float_row([10**9, 10**9], 16), bytes(16)), "is missing"),
    "negative shape": (header(float_row([-1], 4), bytes(4)), "is missing"),
    "truncated": (truncated, "truncated or damaged"),
    "empty": (lambda folder: (folder / "model.safetensors").write_bytes(b""), "truncated"),
    "index outside": (index(x="../part.safetensors"), "is not the name of a safetensors file in this folder"),
    "index with a root": (index(x="/etc/passwd.safetensors"), "is not the name of a safetensors file"),
    "index with a drive": (index(x="C:part.safetensors"), "is not the name of a safetensors file"),
    "index to a pickle": (index(x="pytorch_model.bin"), "is not the name of a safetensors file"),
    "index to nothing": (index(x="other.safetensors"), "missing"),
    "index to a wrong tensor": (index(x="part.safetensors"), "has no tensor 'x'"),
    "index without files": (index(), "weight_map"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_a_broken_folder_is_refused_in_plain_words(folder: Path, name: str) -> None:
    damage, words = REFUSALS[name]
    damage(folder)
    before = peak_bytes()
    with pytest.raises(CheckpointError) as caught:
        PretrainedFolder.open(folder)
    assert words in str(caught.value) and str(folder) in str(caught.value)
    assert peak_bytes() - before < 200_000_000


def test_a_tensor_of_another_shape_or_type_is_named(folder: Path) -> None:
    family = known_families()["gpt2"]
    spec: Any = family.spec(CONFIG, ())
    tensors = to_theirs(family.tensors(spec), spec.build().state_dict())
    tensors["transformer.wpe.weight"] = tensors["transformer.wpe.weight"][:3]
    tensors["transformer.ln_f.bias"] = torch.zeros(4, dtype=torch.int64)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError) as caught:
        PretrainedFolder.open(folder)
    assert "transformer.wpe.weight has shape (3, 4), the config describes (8, 4)" in str(caught.value)
    assert "transformer.ln_f.bias holds I64" in str(caught.value)


def test_values_that_are_not_finite_leave_no_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4] + struct.pack("<f", float("nan")))
    assert main(["import", str(folder), "--out", str(folder / "run")]) == 2
    assert "not finite" in capsys.readouterr().err and not (folder / "run").exists()


class Canary:
    """Runs code when it is unpickled."""

    def __init__(self, file: Path):
        self.file = file

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Path.touch, (self.file,)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pkl", "model.ckpt"])
def test_a_pickle_is_refused_with_the_way_to_convert_it(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Canary(folder / "ran")))
    assert main(["import", str(folder), "--out", str(folder / "run")]) == 2
    error = capsys.readouterr().err
    assert "pickle is not loaded" in error and "save_pretrained" in error
    assert main(["import", str(folder / name), "--out", str(folder / "run")]) == 2
    assert not (folder / "ran").exists() and not (folder / "run").exists()


def test_python_files_of_a_folder_are_not_executed(folder: Path) -> None:
    (folder / "modeling_gpt2.py").write_text(f"open({str(folder / 'ran')!r}, 'w')")
    (folder / "__init__.py").write_text(f"open({str(folder / 'ran')!r}, 'w')")
    assert main(["import", str(folder), "--out", str(folder / "run"), "--quiet"]) == 0
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{}", "is not a tokenizer.json"),
        (b"[" * 100_000, "is not a tokenizer.json"),
        (b"\xff\xfe", "is not a tokenizer.json"),
        (b" " * ((1 << 26) + 1), "at most"),
    ],
    ids=["empty", "nested", "not_text", "giant"],
)
def test_a_broken_tokenizer_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], content: bytes, words: str
) -> None:
    (folder / "tokenizer.json").write_bytes(content)
    assert main(["import", str(folder), "--out", str(folder / "run")]) == 2
    assert words in capsys.readouterr().err and not (folder / "run").exists()


def test_a_missing_folder_is_answered_with_a_similar_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "smollm").mkdir()
    assert main(["import", str(tmp_path / "smolm")]) == 2
    assert f"no such file or folder. Did you mean '{tmp_path / 'smollm'}'?" in capsys.readouterr().err
