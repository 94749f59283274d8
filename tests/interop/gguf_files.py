"""Small GGUF files, written by the gguf package from models of transformers as llama.cpp converts them."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from tests.interop.folders import write_tokenizer

TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
MODULES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def gguf_tensors(model: Any, interleaved: bool) -> dict[str, np.ndarray[Any, Any]]:
    """The tensors of a model by their names in GGUF; the rows of rotary pairs side by side if `interleaved`."""
    tensors, config = {}, model.config
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        module, _, kind = name.removeprefix("model.layers.").rpartition(".")
        layer, _, inner = module.partition(".")
        place = f"blk.{layer}.{MODULES[inner]}" if layer.isdigit() else MODULES[module]
        data = tensor.detach().numpy()
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(place[-6:])
        if heads and interleaved:  # as `permute` of convert_hf_to_gguf.py
            halves = data.reshape(heads, 2, data.shape[0] // heads // 2, *data.shape[1:])
            data = halves.swapaxes(1, 2).reshape(data.shape)
        tensors[f"{place}.{kind}"] = np.ascontiguousarray(data)
    return tensors


def write_gguf(
    library: ModuleType, file: Path, model: Any, types: Mapping[str, str] | None = None, pre: str = "gpt-2"
) -> dict[str, np.ndarray[Any, Any]]:
    """Writes a model with a byte-level tokenizer; `types` has the types of the tensors that are not F32. Returns the
    stored tensors, quantised ones as bytes."""
    config = model.config
    kind = config.model_type
    writer = library.GGUFWriter(str(file), kind)
    writer.add_name("a small one")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    add_tokenizer(library, writer, file, pre)
    stored = {}
    for name, data in gguf_tensors(model, interleaved=kind == "llama").items():
        number = library.GGMLQuantizationType[(types or {}).get(name, "F32")]
        stored[name] = library.quants.quantize(data, number)
        writer.add_tensor(name, stored[name], raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stored


def add_tokenizer(library: ModuleType, writer: Any, file: Path, pre: str) -> None:
    """The fields of the tokenizer that `write_tokenizer` makes, with two control tokens and a chat template."""
    folder = file.parent / f"{file.stem}-tokenizer"
    folder.mkdir(exist_ok=True)
    write_tokenizer(folder, "<|start|>", "<|end|>")
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    control, normal = library.TokenType.CONTROL, library.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([control if token in ("<|start|>", "<|end|>") else normal for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
