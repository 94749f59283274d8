"""Presets have as many weights as Hugging Face's models of the same sizes."""

import warnings
from types import ModuleType
from typing import Any

import pytest
import torch

from anyformer.analysis.preset_sizes import weights

SMALL_T5 = {"d_model": 512, "num_layers": 6, "num_heads": 8, "d_ff": 2048}
BERT = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
LARGE_BERT = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
ROBERTA = {"vocab_size": 50_265, "max_position_embeddings": 514, "type_vocab_size": 1}
PEERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt": ("OpenAIGPTLMHeadModel", {}),
    "gpt2": ("GPT2LMHeadModel", {}),
    "gpt2-xl": ("GPT2LMHeadModel", {"n_embd": 1600, "n_layer": 48, "n_head": 25}),
    "gpt3": ("GPT2LMHeadModel", {"n_embd": 12_288, "n_layer": 96, "n_head": 96, "n_positions": 2048}),
    "bert-base": ("BertModel", BERT),
    "bert-large": ("BertModel", LARGE_BERT),
    "roberta-large": ("RobertaModel", LARGE_BERT | ROBERTA),
    "albert-base": ("AlbertModel", BERT),
    "albert-large": ("AlbertModel", LARGE_BERT),
    "albert-xlarge": ("AlbertModel", LARGE_BERT | {"hidden_size": 2048, "intermediate_size": 8192}),
    "albert-xxlarge": (
        "AlbertModel",
        BERT | {"hidden_size": 4096, "num_attention_heads": 64, "intermediate_size": 16_384},
    ),
    "bloom-176b": ("BloomForCausalLM", {"hidden_size": 14_336, "n_layer": 70, "n_head": 112, "vocab_size": 250_880}),
    "bigbird-base": ("BigBirdModel", BERT | {"attention_type": "original_full"}),
    "t5-small": ("T5ForConditionalGeneration", SMALL_T5),
    "t5-base": ("T5ForConditionalGeneration", {"d_model": 768, "num_layers": 12, "num_heads": 12, "d_ff": 3072}),
    "t5-large": ("T5ForConditionalGeneration", {"d_model": 1024, "num_layers": 24, "num_heads": 16, "d_ff": 4096}),
    "t5-3b": (
        "T5ForConditionalGeneration",
        {"d_model": 1024, "num_layers": 24, "num_heads": 32, "d_ff": 16_384, "d_kv": 128},
    ),
    "t5-11b": (
        "T5ForConditionalGeneration",
        {"d_model": 1024, "num_layers": 24, "num_heads": 128, "d_ff": 65_536, "d_kv": 128},
    ),
}


def peer_weights(transformers: ModuleType, name: str, options: dict[str, Any]) -> int:
    peer = getattr(transformers, name)
    with torch.device("meta"), warnings.catch_warnings(action="ignore"):
        return sum(parameter.numel() for parameter in peer(peer.config_class(**options)).parameters())


@pytest.mark.row(
    "SST-02",
    clause=(
        "24 + 24 layers, d = 1024, d_ff 16384, 32 heads with d_kv = 128",
        "count equals the transformers model of the same T5 config",
    ),
)
@pytest.mark.row(
    "SST-04",
    clause=(
        "embedding factorised through E = 128",
        "one set of block weights shared across all layers",
        "all four counts equal transformers AlbertModel",
    ),
)
@pytest.mark.row("SST-05", clause="24 + 24 layers, d = 1024, d_ff 65536, 128 heads with d_kv = 128")
@pytest.mark.row("SST-10", clause="large: 355.36M parameters, equal to transformers RobertaModel")
@pytest.mark.row("PRE-14", clause=("vocabulary 30,522, context 512", "count equals BertModel(config) of transformers"))
@pytest.mark.row("PRE-15", clause="335.14M parameters, as transformers counts")
@pytest.mark.row("PRE-19", clause="pre-norm with RMS norm in each sub-layer, no biases")
@pytest.mark.row("PRE-20", clause="context 1024, vocabulary 50,257")
@pytest.mark.row("PRE-21", clause="96 layers, d = 12288, 96 heads, context 2048")
@pytest.mark.row("SCL-03", clause="counts are 109.48M and 335.14M")
@pytest.mark.row("SCL-05", clause="count equals RobertaModel of transformers")
@pytest.mark.row("TRF-12", clause="the preset's parameter count is that of its N layers")
@pytest.mark.row("PRE-09")
@pytest.mark.parametrize("name", PEERS)
def test_a_preset_has_as_many_weights_as_its_peer(transformers: ModuleType, name: str) -> None:
    assert weights(name) == peer_weights(transformers, *PEERS[name])


@pytest.mark.row("SCL-04", clause="a relative projection W_r in each layer: about 360M, not 340M")
@pytest.mark.row("SCL-04", clause="count equals XLNetModel(config) but for segments, about 360M")
def test_xlnet_has_as_many_weights_as_its_peer_but_for_its_segments(transformers: ModuleType) -> None:
    with torch.device("meta"):
        peer = transformers.XLNetModel(transformers.XLNetConfig())
    segments = ("seg_embed", "r_s_bias", "mask_emb")  # relative segment encodings, and the vector of a hidden query
    absent = sum(weight.numel() for name, weight in peer.named_parameters() if name.endswith(segments))
    assert absent == 24 * 3 * 1024 + 1024
    assert weights("xlnet-large") + absent == sum(weight.numel() for weight in peer.parameters())
    assert weights("xlnet-large") == pytest.approx(360e6, rel=0.005)
