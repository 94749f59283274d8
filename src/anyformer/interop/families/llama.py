"""Llama and SmolLM: LlamaForCausalLM. Grouped heads, rotary positions, RMS norms, SwiGLU."""

from collections.abc import Iterator
from typing import Any

from anyformer.interop.family import Family
from anyformer.interop.mapping import ACTIVATIONS, Entry, key, linear, norm, tensor, zeros
from anyformer.interop.shapes import FEED, LAYER, LOOK, TYING, block, layers, part_of, qkv_sizes
from anyformer.models import Decoder
from anyformer.models.single import Single
from anyformer.parts.channels.glu import GLU
from anyformer.parts.heads.untied import Untied
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.norms.rms import RMSNorm
from anyformer.parts.positions.rope import Rope

LAYERS = block(Attention(heads=1, head_dim=2, position=Rope()), GLU(), norm=RMSNorm())
TEMPLATE = Decoder(vocab=1, dim=2, stack=layers(LAYERS), exit_norm=RMSNorm())


def tensors(spec: Single, out_bias: bool = True) -> Iterator[Entry]:
    """`out_bias`: the last projection of attention has a bias if the others have one."""
    look, feed = part_of(spec, 0, Attention), part_of(spec, 1, GLU)
    yield from tensor("embedding.weight", "model.embed_tokens.weight")
    yield from norm("exit_norm", "model.norm", bias=False)
    if spec.head == Untied():
        yield from linear("head.words", "lm_head", bias=False)
    for n in range(spec.stack.depth):
        ours, theirs = f"stack.layers.{n}.branches", f"model.layers.{n}"
        names = [f"{theirs}.self_attn.{name}_proj" for name in "qkv"]
        yield from linear(f"{ours}.0.part.qkv", *names, bias=look.bias, sizes=qkv_sizes(look, spec.dim))
        yield from linear(f"{ours}.0.part.out", f"{theirs}.self_attn.o_proj", bias=look.bias and out_bias)
        if look.bias and not out_bias:
            yield from zeros(f"{ours}.0.part.out.bias")
        yield from linear(f"{ours}.1.part.up", f"{theirs}.mlp.gate_proj", f"{theirs}.mlp.up_proj", bias=feed.bias)
        yield from linear(f"{ours}.1.part.down", f"{theirs}.mlp.down_proj", bias=feed.bias)
        yield from norm(f"{ours}.0.before", f"{theirs}.input_layernorm", bias=False)
        yield from norm(f"{ours}.1.before", f"{theirs}.post_attention_layernorm", bias=False)


KEYS = (
    key("vocab_size", "vocab"),
    key("hidden_size", "dim"),
    key("num_hidden_layers", "stack.depth"),
    key("max_position_embeddings", "max_len", default=2048),
    key("num_attention_heads", f"{LOOK}.heads"),
    key("num_key_value_heads", f"{LOOK}.kv_heads", default=None),
    key("head_dim", f"{LOOK}.head_dim", default=None),
    key("intermediate_size", f"{FEED}.hidden"),
    key("hidden_act", f"{FEED}.activation", default="silu", convert=ACTIVATIONS),
    key("rms_norm_eps", "exit_norm.eps", f"{LAYER}.0.norm.eps", f"{LAYER}.1.norm.eps", default=1e-6),
    key("rope_parameters.rope_theta", f"{LOOK}.position.base", default=10_000.0, same_as="rope_theta"),
    key("attention_dropout", f"{LOOK}.dropout", default=0.0),
    key("tie_word_embeddings", "head", default=False, convert=TYING),
)
FIXED: dict[str, tuple[Any, ...]] = {
    "rope_parameters.rope_type": ("default",),
    "rope_scaling": (None,),
    "rope_interleaved": (False,),
}
UNUSED = ("*.rotary_emb.inv_freq",)
COPIES = {"lm_head.weight": "model.embed_tokens.weight"}

FAMILY = Family(
    model_types=("llama",),
    template=TEMPLATE,
    tensors=tensors,
    base="model.",
    keys=(
        *KEYS,
        key("attention_bias", f"{LOOK}.bias", default=False),
        key("mlp_bias", f"{FEED}.bias", default=False),
    ),
    fixed={**FIXED, "architectures": ("LlamaForCausalLM", "LlamaModel")},
    harmless=("pretraining_tp", "is_llama_config", "transformers.js_config"),
    unused=UNUSED,
    copies=COPIES,
)
