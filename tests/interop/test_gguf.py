"""GGUF files: the logits of the same weights in transformers, the values of every type, the tokenizer."""

import json
import struct
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from tests.interop.folders import CASES, LLAMA, LONGEST, Case
from tests.interop.gguf_files import TEMPLATE, write_gguf
from tokenizers import Tokenizer as Library
from tokenizers.pre_tokenizers import PreTokenizer

import anyformer
from anyformer.cli.main import main
from anyformer.interop.folder import PretrainedFolder
from anyformer.interop.gguf_header import TYPES, Header, StoredTensor
from anyformer.interop.gguf_model import GGUFTensors
from anyformer.interop.gguf_tokens import CUTS

MODELS = {
    "llama": CASES["llama"],
    "llama_tied_with_biases": CASES["llama_tied_with_biases"],
    "qwen2": CASES["qwen2"],
}
TEXTS = (
    "axu byv cxw",
    " 1234 it's IT'S\n\n  x\t",
    "e\u0301t\u00e9 caf\u00e9 \u6f22\u5b57 <|end|>",
    "a_b(c);\r\n\r\n  d",
)


@pytest.fixture(scope="session")
def gguf() -> ModuleType:
    module: ModuleType = pytest.importorskip("gguf", reason="the files are written by the gguf package")
    return module


def logits_agree(file: Path, peer: Any) -> None:
    folder = PretrainedFolder.open(file)
    model = folder.spec.build().eval()
    model.load_state_dict(folder.tensors())
    for length in (1, 2, 7, LONGEST - 1):
        tokens = torch.randint(5, 90, (3, length))
        with torch.no_grad():
            ours, theirs = model(tokens).y, peer(input_ids=tokens).logits
        assert (ours - theirs).abs().max() <= 1e-5 * max(1.0, theirs.abs().max().item())


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_those_of_the_same_weights_in_transformers(
    transformers: ModuleType, gguf: ModuleType, tmp_path: Path, name: str
) -> None:
    peer = MODELS[name].make(transformers, tmp_path / "folder")
    write_gguf(gguf, tmp_path / "model.gguf", peer)
    logits_agree(tmp_path / "model.gguf", peer)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_logits_of_quantised_weights_equal_those_of_the_rounded_weights(
    transformers: ModuleType, gguf: ModuleType, tmp_path: Path, kind: str
) -> None:
    sizes = {**LLAMA, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    peer = Case("LlamaForCausalLM", sizes).make(transformers, tmp_path / "folder")
    number = gguf.GGMLQuantizationType[kind]
    with torch.no_grad():
        for parameter in peer.parameters():
            if parameter.dim() == 2:
                rounded = gguf.quants.dequantize(gguf.quants.quantize(parameter.numpy(), number), number)
                parameter.copy_(torch.from_numpy(rounded))
    names = [f"blk.{n}.{one}.weight" for n in range(2) for one in ("attn_q", "attn_k", "ffn_gate", "ffn_down")]
    write_gguf(gguf, tmp_path / "model.gguf", peer, dict.fromkeys(["token_embd.weight", *names], kind))
    assert {one.type.name for one in Header.read(tmp_path / "model.gguf").tensors.values()} == {"F32", kind}
    logits_agree(tmp_path / "model.gguf", peer)


def half(data: bytes) -> np.float32:
    return np.float32(np.frombuffer(data, np.float16)[0])


def reference(kind: str, block: bytes) -> list[np.float32]:
    """The values of one block, one by one, as ggml's comments describe it."""
    d, low, high = half(block[:2]), block[2:18], block[4:20]
    if kind == "Q8_0":
        return [d * np.float32(value) for value in struct.unpack("<32b", block[2:])]
    if kind == "Q4_0":
        return [d * np.float32(value - 8) for value in [*(b & 15 for b in low), *(b >> 4 for b in low)]]
    if kind == "Q4_1":
        least = half(block[2:4])
        return [d * np.float32(value) + least for value in [*(b & 15 for b in high), *(b >> 4 for b in high)]]
    return _q4_k(block) if kind == "Q4_K" else _q6_k(block)


def _q4_k(block: bytes) -> list[np.float32]:
    d, least, scales, values = half(block[:2]), half(block[2:4]), block[4:16], block[16:]
    result = []
    for group in range(8):  # of 32 values; even groups are the low halves of 32 bytes, odd ones the high halves
        if group < 4:
            scale, minimum = scales[group] & 63, scales[group + 4] & 63
        else:
            scale = scales[group + 4] & 15 | scales[group - 4] >> 6 << 4
            minimum = scales[group + 4] >> 4 | scales[group] >> 6 << 4
        for byte in values[group // 2 * 32 : group // 2 * 32 + 32]:
            value = byte >> 4 if group % 2 else byte & 15
            result.append(d * np.float32(scale) * np.float32(value) - least * np.float32(minimum))
    return result


def _q6_k(block: bytes) -> list[np.float32]:
    low, high, scales, d = block[:128], block[128:192], struct.unpack("<16b", block[192:208]), half(block[208:])
    result = []
    for place in range(256):  # two halves of 128: four groups of 32, two of them in the low half of each byte
        part, group, at = place // 128, place % 128 // 32, place % 32
        byte = low[part * 64 + group % 2 * 32 + at]
        value = (byte >> 4 if group > 1 else byte & 15) | (high[part * 32 + at] >> 2 * group & 3) << 4
        result.append(d * np.float32(scales[place // 16]) * np.float32(value - 32))
    return result


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K"])
def test_every_type_has_the_values_that_its_blocks_describe(gguf: ModuleType, tmp_path: Path, kind: str) -> None:
    block = next(one for one in TYPES.values() if one.name == kind)
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, (3, 2, block.bytes), dtype=np.uint8)
    halves = {"Q4_1": (0, 2), "Q4_K": (0, 2), "Q6_K": (208,)}.get(kind, (0,))
    for place in halves:  # scales of a usual size: random bytes could be infinite
        data[..., place : place + 2] = rng.normal(size=(3, 2, 1)).astype(np.float16).view(np.uint8)
    (tmp_path / "data").write_bytes(data.tobytes())
    shape = (3, 2 * block.values)
    header = Header(tmp_path / "data", {}, {"x": StoredTensor(block, shape, 0)})
    tensor = GGUFTensors(header, {"num_attention_heads": 1, "model_type": "qwen2"})["x"]
    expected = [value for row in data for one in row for value in reference(kind, one.tobytes())]
    assert tensor.shape == shape and torch.equal(tensor.flatten(), torch.tensor(np.array(expected)))


def test_the_sizes_of_all_types_are_those_of_the_library(gguf: ModuleType) -> None:
    for number, kind in TYPES.items():
        assert gguf.GGMLQuantizationType[kind.name] == number
        assert gguf.GGML_QUANT_SIZES[number] == (kind.values, kind.bytes)


@pytest.fixture(scope="module")
def llama(transformers: ModuleType, gguf: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("llama")
    peer = CASES["llama"].make(transformers, folder)
    write_gguf(gguf, folder / "tiny.gguf", peer)
    return folder / "tiny.gguf", peer


def test_the_header_has_the_fields_that_the_library_reads(gguf: ModuleType, llama: tuple[Path, Any]) -> None:
    header, reader = Header.read(llama[0]), gguf.GGUFReader(llama[0])
    fields = {name: one.contents() for name, one in reader.fields.items() if not name.startswith("GGUF.")}
    assert header.fields == fields
    places = {one.name: (one.tensor_type.name, one.data_offset, one.n_bytes) for one in reader.tensors}
    assert {name: (one.type.name, one.start, one.bytes) for name, one in header.tensors.items()} == places


def test_a_file_becomes_a_run_that_generates(
    llama: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["import", str(llama[0])]) == 0
    assert "largest difference from transformers" in capsys.readouterr().out
    assert main(["generate", "runs/tiny", "axu", "--max-new", "3"]) == 0
    stamp = Path("runs/tiny/recipe.toml").stat().st_mtime_ns
    run = anyformer.from_pretrained(llama[0])
    assert run.folder == Path("runs/tiny") and (run.folder / "recipe.toml").stat().st_mtime_ns == stamp


def test_the_tokenizer_is_that_of_the_model(llama: tuple[Path, Any], tmp_path: Path) -> None:
    run = anyformer.from_pretrained(llama[0], tmp_path / "run")
    theirs = Library.from_file(str(llama[0].parent / "tiny-tokenizer" / "tokenizer.json"))
    for text in TEXTS[:2]:
        assert run.tokenizer.encode(text) == theirs.encode(text).ids
        assert run.tokenizer.decode(run.tokenizer.encode(text)) == text
    assert (run.tokenizer.words.bos, run.tokenizer.words.eos) == (0, 1)
    assert 1 not in run.tokenizer.encode("<|end|>")  # text never becomes a control token
    config = json.loads((run.folder / "tokenizer_config.json").read_text())
    expected = {"add_bos_token": False, "bos_token": "<|start|>", "eos_token": "<|end|>"}
    assert config == expected and (run.folder / "chat_template.jinja").read_text() == TEMPLATE


def cut(steps: Any, text: str) -> list[str]:
    """The words of a text, cut by the steps of a pre-tokenizer."""
    library = Library.from_str(
        '{"model": {"type": "BPE", "vocab": {}, "merges": []}, "pre_tokenizer": '
        f'{{"type": "Sequence", "pretokenizers": {steps}}}}}'
    )
    words: PreTokenizer = library.pre_tokenizer
    return [word for word, _ in words.pre_tokenize_str(text)]


def test_texts_are_cut_as_the_original_tokenizers_cut_them(transformers: ModuleType) -> None:
    from transformers.convert_slow_tokenizer import TikTokenConverter
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    patterns = {"llama-bpe": TikTokenConverter(vocab_file="none").pattern, "qwen2": PRETOKENIZE_REGEX}
    for name, pattern in patterns.items():
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for text in TEXTS:
            assert cut(json.dumps(CUTS[name]), text) == cut(json.dumps([split, bytes_only]), text)
    assert cut(json.dumps(CUTS["smollm"]), "a 123") == ["a", "\u0120", "1", "2", "3"]
    assert cut(json.dumps(CUTS["gpt-2"]), "a 123 it's") == ["a", "\u0120123", "\u0120it", "'s"]


def test_without_the_package_it_says_how_to_install_it(
    llama: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from anyformer.interop import gguf_model

    gguf_model.library.cache_clear()
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert main(["import", str(llama[0]), "--out", str(tmp_path / "run")]) == 2
    assert "pip install 'anyformer[gguf]'" in capsys.readouterr().err and not (tmp_path / "run").exists()
