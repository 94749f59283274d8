"""Broken and malicious GGUF files are refused in one sentence, at once and with little memory."""

import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.interop.test_broken_folders import peak_bytes

from anyformer.cli.main import main
from anyformer.errors import CheckpointError
from anyformer.interop.folder import PretrainedFolder
from anyformer.interop.tokens import read_tokenizer

U32, F32, BOOL, STRING, LIST, U64 = 4, 6, 7, 8, 9, 10
Field = tuple[str, int, bytes]


def text(value: str | bytes, length: int | None = None) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data) if length is None else length) + data


def texts(*values: str, count: int | None = None) -> bytes:
    return struct.pack("<IQ", STRING, len(values) if count is None else count) + b"".join(map(text, values))


def whole(number: int) -> bytes:
    return struct.pack("<I", number)


def numbers(kind: int, data: bytes, count: int) -> bytes:
    return struct.pack("<IQ", kind, count) + data


LETTERS = [chr(33 + index) for index in range(8)]
FIELDS: dict[str, tuple[int, bytes]] = {
    "general.architecture": (STRING, text("llama")),
    "llama.context_length": (U32, whole(8)),
    "llama.embedding_length": (U32, whole(4)),
    "llama.block_count": (U32, whole(1)),
    "llama.feed_forward_length": (U32, whole(6)),
    "llama.attention.head_count": (U32, whole(2)),
    "llama.attention.layer_norm_rms_epsilon": (F32, struct.pack("<f", 1e-5)),
    "tokenizer.ggml.model": (STRING, text("gpt2")),
    "tokenizer.ggml.pre": (STRING, text("gpt-2")),
    "tokenizer.ggml.tokens": (LIST, texts(*LETTERS)),
    "tokenizer.ggml.token_type": (LIST, numbers(5, struct.pack("<8i", *[1] * 8), 8)),
    "tokenizer.ggml.merges": (LIST, texts()),
}
LAYER = {"attn_norm": (4,), "attn_q": (4, 4), "attn_k": (4, 4), "attn_v": (4, 4), "attn_output": (4, 4),
         "ffn_norm": (4,), "ffn_gate": (6, 4), "ffn_up": (6, 4), "ffn_down": (4, 6)}  # fmt: skip
TENSORS = {
    "token_embd.weight": (8, 4),
    "output_norm.weight": (4,),
    **{f"blk.0.{name}.weight": shape for name, shape in LAYER.items()},
}


def gguf_bytes(
    fields: dict[str, tuple[int, bytes]] = FIELDS,
    *,
    version: int = 3,
    counts: tuple[int | None, int | None] = (None, None),
    damage: Callable[[str, list[int], int, int], tuple[list[int], int, int]] | None = None,
    leave_out: str = "",
) -> bytes:
    """A file with these fields. `counts` and `damage` (sizes, type and place of a tensor) make it lie."""
    shapes = {name: shape for name, shape in TENSORS.items() if name != leave_out}
    tensors, data = b"", b""
    for name, shape in shapes.items():
        sizes, kind, place = list(reversed(shape)), 0, len(data)
        data += bytes(4 * shape[0] * (shape[1] if len(shape) > 1 else 1))
        data += bytes(-len(data) % 32)
        if damage:
            sizes, kind, place = damage(name, sizes, kind, place)
        tensors += text(name) + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes) + struct.pack("<IQ", kind, place)
    stated = (len(shapes) if counts[0] is None else counts[0], len(fields) if counts[1] is None else counts[1])
    header = b"GGUF" + struct.pack("<IQQ", version, *stated)
    header += b"".join(text(name) + struct.pack("<I", kind) + value for name, (kind, value) in fields.items())
    header += tensors
    return header + bytes(-len(header) % 32) + data


def changed(name: str, kind: int, value: bytes) -> bytes:
    return gguf_bytes({**FIELDS, name: (kind, value)})


def without(name: str) -> bytes:
    return gguf_bytes({key: value for key, value in FIELDS.items() if key != name})


def tensor(name: str, **changes: Any) -> bytes:
    def damage(this: str, sizes: list[int], kind: int, place: int) -> tuple[list[int], int, int]:
        if this != name:
            return sizes, kind, place
        return changes.get("sizes", sizes), changes.get("kind", kind), changes.get("place", place)

    return gguf_bytes(damage=damage)


GOOD = gguf_bytes()
REFUSALS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "cannot be read as GGUF"),
    "other file": (b"PK\x03\x04" + bytes(100), "is not a GGUF file"),
    "only the magic": (b"GGUF", "truncated"),
    "version 1": (gguf_bytes(version=1), "GGUF version 1 cannot be read"),
    "big-endian": (gguf_bytes(version=3 << 24), "little-endian"),
    "truncated data": (GOOD[:-40], "truncated or damaged"),
    "truncated header": (GOOD[:200], "truncated"),
    "bytes behind the data": (GOOD + bytes(1000), "truncated or damaged"),
    "many tensors": (gguf_bytes(counts=(2**63, None)), "claims 9,223,372,036,854,775,808 tensors"),
    "more tensors than there are": (gguf_bytes(counts=(12, None)), "its header"),
    "many fields": (gguf_bytes(counts=(None, 2**60)), "fields; at most"),
    "string of gigabytes": (changed("general.name", STRING, text("x", 1 << 33)), "8,589,934,592 bytes in a string"),
    "string beyond the file": (changed("general.name", STRING, text("x", 1 << 25)), "truncated"),
    "long name": (changed("x" * 2000, U32, whole(1)), "bytes in a string"),
    "name that is not UTF-8": (gguf_bytes().replace(b"general.arch", b"\xff\xfeneral.arch"), "cannot be read as GGUF"),
    "list of gigabytes": (changed("tokenizer.ggml.tokens", LIST, texts(count=1 << 40)), "elements in lists"),
    "list beyond the file": (changed("tokenizer.ggml.tokens", LIST, texts(count=1 << 20)), "its header"),
    "long list of numbers": (changed("tokenizer.ggml.scores", LIST, numbers(F32, b"", 1 << 20)), "truncated"),
    "list of lists": (changed("general.tags", LIST, numbers(LIST, b"", 1)), "has the type 9, which is not known"),
    "unknown type of a field": (changed("general.tags", 77, b""), "has the type 77, which is not known"),
    "field twice": (GOOD.replace(b"llama.context_length", b"tokenizer.ggml.model", 1), "occurs twice"),
    "alignment 0": (changed("general.alignment", U32, whole(0)), "power of two"),
    "alignment 48": (changed("general.alignment", U32, whole(48)), "power of two"),
    "other architecture": (changed("general.architecture", STRING, text("gpt2")), "cannot be imported from GGUF"),
    "architecture of a wrong type": (changed("general.architecture", U32, whole(1)), "cannot be imported from GGUF"),
    "no architecture": (without("general.architecture"), "general.architecture=None"),
    "unknown field": (changed("llama.attention.sinks", U32, whole(1)), "llama.attention.sinks: is not a known field"),
    "unknown section": (changed("adapter.type", STRING, text("lora")), "adapter.type: is not a known field"),
    "split file": (changed("split.count", U32, whole(2)), "split.count: is not a known field"),
    "experts": (changed("llama.expert_count", U32, whole(8)), "llama.expert_count: must be 0"),
    "scaled rotations": (changed("llama.rope.scaling.type", STRING, text("yarn")), "must be 'none', got 'yarn'"),
    "partial rotations": (changed("llama.rope.dimension_count", U32, whole(1)), "must be 2, the size of a head"),
    "other quantisation": (changed("general.quantization_version", U32, whole(1)), "must be 2"),
    "missing field": (without("llama.block_count"), "llama.block_count: is missing"),
    "text for a number": (changed("llama.block_count", STRING, text("1")), "should be one positive number"),
    "list for a number": (changed("llama.attention.head_count", LIST, numbers(U32, whole(2), 1)), "positive number"),
    "no heads": (changed("llama.attention.head_count", U32, whole(0)), "should be one positive number"),
    "billions of layers": (changed("llama.block_count", U32, whole(2**32 - 1)), "stack.depth: must be at most"),
    "heads that do not divide the width": (changed("llama.attention.head_count", U32, whole(3)), "head"),
    "a giant width": (changed("llama.embedding_length", U32, whole(2**32 - 4)), "dim: must be at most"),
    "a giant vocabulary": (changed("llama.vocab_size", U64, struct.pack("<Q", 10**12)), "has shape"),
    "missing tensor": (gguf_bytes(leave_out="blk.0.attn_q.weight"), "blk.0.attn_q.weight is missing"),
    "missing table": (gguf_bytes(leave_out="token_embd.weight"), "token_embd.weight is missing"),
    "unknown tensor": (GOOD.replace(b"output_norm", b"rope_freqs_", 1), "output_norm.weight is missing"),
    "tensor twice": (GOOD.replace(b"attn_k", b"attn_q", 1), "occurs twice"),
    "unknown type": (tensor("token_embd.weight", kind=10), "token_embd.weight has the type 10"),
    "shape that lies": (tensor("token_embd.weight", sizes=[1 << 40, 1 << 40]), "begin"),
    "last shape that lies": (tensor("blk.0.ffn_down.weight", sizes=[1 << 40, 1 << 40]), "truncated or damaged"),
    "too many dimensions": (tensor("token_embd.weight", sizes=[1] * 9), "dimensions; at most 4"),
    "size 0": (tensor("token_embd.weight", sizes=[0, 8]), "has the sizes [0, 8]"),
    "half a block": (tensor("token_embd.weight", kind=8), "has the sizes [4, 8], of which Q8_0 stores none"),
    "overlapping tensors": (tensor("blk.0.attn_k.weight", place=0), "is said to begin at"),
    "place beyond the file": (tensor("blk.0.attn_k.weight", place=2**63), "is said to begin at"),
}  # fmt: skip
WRONG_TOKENS: dict[str, tuple[bytes, str]] = {
    "sentencepiece": (changed("tokenizer.ggml.model", STRING, text("bert")), "tokenizer.ggml.model: must be 'gpt2'"),
    "unknown cut": (changed("tokenizer.ggml.pre", STRING, text("tekken")), "'tekken' is not a known pre-tokenizer"),
    "no cut": (without("tokenizer.ggml.pre"), "tokenizer.ggml.pre: is missing"),
    "no tokens": (without("tokenizer.ggml.tokens"), "tokenizer.ggml.tokens: is missing"),
    "unknown field": (changed("tokenizer.ggml.lowercase", BOOL, b"\1"), "tokenizer.ggml.lowercase: is not a known"),
    "foreign tokenizer": (changed("tokenizer.rwkv.world", STRING, text("x")), "tokenizer.rwkv.world: is not a known"),
    "token twice": (changed("tokenizer.ggml.tokens", LIST, texts(*"abcdefga")), "'a' occurs more than once"),
    "numbers for tokens": (changed("tokenizer.ggml.tokens", LIST, numbers(U32, whole(1), 1)), "a list of texts"),
    "few types": (changed("tokenizer.ggml.token_type", LIST, numbers(5, whole(1), 1)), "a list of 8 numbers"),
    "merge of one": (changed("tokenizer.ggml.merges", LIST, texts("ab")), "two tokens with a space"),
    "merge of unknown tokens": (changed("tokenizer.ggml.merges", LIST, texts("q r")), "is not a tokenizer.json"),
    "text for an id": (changed("tokenizer.ggml.bos_token_id", STRING, text("1")), "should be the id of a token"),
    "more tokens than rows": (
        gguf_bytes(
            {
                **FIELDS,
                "tokenizer.ggml.tokens": (LIST, texts(*"abcdefghi")),
                "tokenizer.ggml.token_type": (LIST, numbers(5, struct.pack("<9i", *[1] * 9), 9)),
            }
        ),
        "has the id 8, the model 8 ids",
    ),
}


@pytest.fixture(autouse=True)
def _package() -> None:
    pytest.importorskip("gguf", reason="reading GGUF needs the gguf package")


def test_the_file_without_damage_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(GOOD)
    folder = PretrainedFolder.open(tmp_path / "model.gguf")
    assert folder.tensors().keys() == folder.shapes.keys()
    tokenizer = read_tokenizer(folder.path, folder.config, folder.spec)
    assert tokenizer is not None and tokenizer.encode("!%") == [0, 4]


@pytest.mark.parametrize("name", REFUSALS)
def test_a_broken_file_is_refused_in_plain_words(tmp_path: Path, name: str) -> None:
    data, words = REFUSALS[name]
    (tmp_path / "model.gguf").write_bytes(data)
    before, start = peak_bytes(), time.process_time()
    with pytest.raises(CheckpointError) as caught:
        PretrainedFolder.open(tmp_path / "model.gguf")
    assert words in str(caught.value) and str(tmp_path) in str(caught.value)
    assert peak_bytes() - before < 200_000_000 and time.process_time() - start < 10


@pytest.mark.parametrize("name", WRONG_TOKENS)
def test_a_broken_tokenizer_is_refused_and_leaves_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    data, words = WRONG_TOKENS[name]
    (tmp_path / "model.gguf").write_bytes(data)
    assert main(["import", str(tmp_path / "model.gguf"), "--out", str(tmp_path / "run")]) == 2
    assert words in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_a_header_of_millions_of_tokens_is_refused_with_little_memory(tmp_path: Path) -> None:
    tokens = struct.pack("<IQ", STRING, 1 << 20) + text("ab") * (1 << 20)
    fields = {**FIELDS, **{f"general.tags{index}": (LIST, tokens) for index in range(4)}}
    (tmp_path / "model.gguf").write_bytes(gguf_bytes(fields))
    del tokens, fields
    before = peak_bytes()
    with pytest.raises(CheckpointError, match="elements in lists"):
        PretrainedFolder.open(tmp_path / "model.gguf")
    assert peak_bytes() - before < 200_000_000


def test_a_context_of_billions_does_not_allocate(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(changed("llama.context_length", U32, whole(2**32 - 1)))
    before = peak_bytes()
    assert main(["import", str(tmp_path / "model.gguf"), "--out", str(tmp_path / "run"), "--quiet"]) == 0
    assert main(["generate", str(tmp_path / "run"), "!", "--max-new", "1"]) == 0
    assert peak_bytes() - before < 200_000_000
