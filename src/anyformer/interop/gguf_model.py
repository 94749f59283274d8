"""A model in a GGUF file, in the words of Hugging Face: a config, and the names of its tensors.

llama.cpp stores the rows of queries and keys of a llama so that the two channels of a rotary pair stand beside each
other: row (head, pair, half) in place of (head, half, pair). Other architectures keep the order of Hugging Face.
"""

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from anyformer.errors import CheckpointError
from anyformer.interop.gguf_header import Header, StoredTensor
from anyformer.interop.reading import ForeignTensors, TensorFacts


class Architecture(NamedTuple):
    """What differs between the architectures that have Llama's layers."""

    model: str
    """Class in transformers."""
    interleaved: bool
    """True if the two channels of a rotary pair stand beside each other."""
    shown_by: Mapping[str, str]
    """Keys of config.json that are true if there is a tensor of this name."""


ARCHITECTURES = {
    "llama": Architecture(
        "LlamaForCausalLM", True, {"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_gate.bias"}
    ),
    "qwen2": Architecture("Qwen2ForCausalLM", False, {}),
}
"""`general.architecture`, which is also the model_type."""
KEYS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
"""Field, behind the architecture -> key of config.json. A model has all of these."""
OPTIONAL = {
    "vocab_size": "vocab_size",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "rope.freq_base": "rope_theta",
}
HEAD_DIM = ("attention.value_length", "rope.dimension_count")
"""Fields that must be equal to the channels of a head."""
FIXED: Mapping[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "rope.scale_linear": (1.0,),
    "rope.scaling.type": ("none",),
}
HARMLESS = (
    "general.alignment", "general.architecture", "general.author", "general.base_model.*", "general.basename",
    "general.dataset.*", "general.datasets", "general.description", "general.doi", "general.file_type",
    "general.finetune", "general.languages", "general.license", "general.license.link", "general.license.name",
    "general.name", "general.organization", "general.quantized_by", "general.repo_url", "general.sampling.*",
    "general.size_label", "general.source.*", "general.tags",
    "general.type", "general.url", "general.uuid", "general.version", "quantize.imatrix.*",
)  # fmt: skip
"""Patterns of fields that do not change what a model computes. Those of the tokenizer are read with it."""
TOKENIZER = "tokenizer."
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_LAYERED = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
_ROTARY = re.compile(r"blk\.\d+\.attn_([qk])\.(weight|bias)")


def config_of(header: Header) -> dict[str, Any]:
    """The config.json of a model; CheckpointError lists the fields that cannot be used."""
    fields, kind = header.fields, header.fields.get("general.architecture")
    if kind not in ARCHITECTURES:
        names = ", ".join(ARCHITECTURES)
        raise CheckpointError(
            f"{header.path}: general.architecture={kind!r} cannot be imported from GGUF. What can: {names}."
        )
    problems = [*_refusals(fields, kind)]
    for name in (*KEYS, *OPTIONAL):
        value = fields.get(f"{kind}.{name}", 1 if name in OPTIONAL else None)
        if value is None:
            problems.append(f"{kind}.{name}: is missing.")
        elif isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            problems.append(f"{kind}.{name}: should be one positive number, got {str(value)[:40]}.")
    if problems:
        raise CheckpointError("\n".join(f"{header.path}: {problem}" for problem in problems))
    table = {**KEYS, **OPTIONAL}
    config = {theirs: _short(fields[f"{kind}.{name}"]) for name, theirs in table.items() if f"{kind}.{name}" in fields}
    _check_heads(header, kind, config)
    tensors, architecture = header.tensors, ARCHITECTURES[kind]
    return {
        "model_type": kind,
        "architectures": [architecture.model],
        "tie_word_embeddings": "output.weight" not in tensors,
        "vocab_size": tensors["token_embd.weight"].shape[0] if "token_embd.weight" in tensors else 1,
        "rope_theta": 10_000.0,
        **{key: name in tensors for key, name in architecture.shown_by.items()},
        **config,
    }


def _refusals(fields: Mapping[str, Any], kind: str) -> Iterator[str]:
    used = {f"{kind}.{name}" for name in (*KEYS, *OPTIONAL, *HEAD_DIM)}
    fixed = {f"{kind}.{name}": values for name, values in FIXED.items()} | {"general.quantization_version": (2,)}
    for name, value in fields.items():
        if name in used or name.startswith(TOKENIZER) or any(fnmatchcase(name, pattern) for pattern in HARMLESS):
            continue
        if name not in fixed:
            yield f"{name}: is not a known field of this architecture, so it may change what the model computes."
        elif value not in fixed[name]:
            yield f"{name}: must be {fixed[name][0]!r}, got {str(value)[:40]!r}."


def _check_heads(header: Header, kind: str, config: Mapping[str, Any]) -> None:
    """Refuses rotary positions on a part of a head, and values of another size than keys."""
    channels = config.get("head_dim", config["hidden_size"] / config["num_attention_heads"])
    for name in HEAD_DIM:
        if (value := header.fields.get(f"{kind}.{name}", channels)) != channels:
            raise CheckpointError(
                f"{header.path}: {kind}.{name}: must be {channels:g}, the size of a head; is {value}."
            )


def _short(value: float) -> float:
    """A number in single precision as it was written: 1e-5, not 9.99999974e-6."""
    return value if isinstance(value, int) else float(str(np.float32(value)))


def gguf_name(theirs: str) -> str:
    """The name in GGUF of a tensor of Hugging Face."""
    if match := _LAYERED.fullmatch(theirs):
        return f"blk.{match[1]}.{LAYER[match[2]]}.{match[3]}"
    module, _, kind = theirs.rpartition(".")
    return f"{TOP[module]}.{kind}"


class GGUFTensors(ForeignTensors):
    """The tensors of a GGUF file by its names, with the rows in the order of Hugging Face. Quantised ones are read in
    single precision."""

    def __init__(self, header: Header, config: Mapping[str, Any]):
        self.header, self.library = header, library()
        heads = config["num_attention_heads"]
        interleaved = ARCHITECTURES[config["model_type"]].interleaved
        self.heads = {"q": heads, "k": config.get("num_key_value_heads", heads)} if interleaved else {}
        self.facts = {
            name: TensorFacts(header.path, one.type.name if one.type.name in _DTYPES else "F32", one.shape)
            for name, one in header.tensors.items()
        }

    def __getitem__(self, name: str) -> Tensor:
        tensor = self._read(self.header.tensors[name])
        match = _ROTARY.fullmatch(name)
        if match is None or not self.heads:
            return tensor
        rows: Tensor = tensor.unflatten(0, (self.heads[match[1]], -1, 2))  # [h c/2 2 ...]
        return rows.transpose(1, 2).reshape(tensor.shape)

    def _read(self, stored: StoredTensor) -> Tensor:
        data = np.fromfile(self.header.path, dtype=np.uint8, count=stored.bytes, offset=stored.start)
        if len(data) != stored.bytes:
            raise CheckpointError(f"{self.header.path}: became shorter while it was read.")
        if (dtype := _DTYPES.get(stored.type.name)) is not None:
            return torch.from_numpy(data).view(dtype).view(stored.shape)
        kind = self.library.GGMLQuantizationType[stored.type.name]
        rows = data.reshape(-1, stored.bytes * stored.shape[-1] // int(np.prod(stored.shape)))
        return torch.from_numpy(self.library.quants.dequantize(rows, kind)).view(stored.shape)


_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@cache
def library() -> ModuleType:
    """The gguf package, which knows how blocks of quantised values are decoded."""
    try:
        import gguf
    except ImportError:
        raise CheckpointError("GGUF files need the gguf package: pip install 'anyformer[gguf]'") from None
    module: ModuleType = gguf
    return module
