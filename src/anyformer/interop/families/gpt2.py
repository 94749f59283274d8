"""GPT-2: GPT2LMHeadModel. Norms before the branches, learned positions, one table for input and output."""

from collections.abc import Iterator

from anyformer.interop.family import Family
from anyformer.interop.mapping import ACTIVATIONS, TRANSPOSED, Entry, key, linear, norm, tensor
from anyformer.interop.shapes import FEED, LAYER, LOOK, TYING, block, layers
from anyformer.models import Decoder
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.heads.untied import Untied
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.norms.layer import LayerNorm
from anyformer.parts.positions.learned import LearnedPosition

LAYERS = block(Attention(heads=1, bias=True), MLP(bias=True), norm=LayerNorm())
TEMPLATE = Decoder(vocab=1, dim=1, stack=layers(LAYERS), position=LearnedPosition(), exit_norm=LayerNorm())
SUMMARY = (
    "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
)  # fmt: skip
"""Keys of a head for multiple choice, which is not imported."""


def tensors(spec: Decoder) -> Iterator[Entry]:
    yield from tensor("embedding.weight", "transformer.wte.weight")
    yield from tensor("position.table.weight", "transformer.wpe.weight")
    yield from norm("exit_norm", "transformer.ln_f")
    if spec.head == Untied():
        yield from linear("head.words", "lm_head", bias=False)
    for n in range(spec.stack.depth):
        yield from gpt_layer(f"stack.layers.{n}.branches", f"transformer.h.{n}", "before")


def gpt_layer(ours: str, theirs: str, place: str) -> Iterator[Entry]:
    """A layer of GPT or GPT-2, whose matrices are [in, out]."""
    yield from linear(f"{ours}.0.part.qkv", f"{theirs}.attn.c_attn", arrangement=TRANSPOSED)
    yield from linear(f"{ours}.0.part.out", f"{theirs}.attn.c_proj", arrangement=TRANSPOSED)
    yield from linear(f"{ours}.1.part.up", f"{theirs}.mlp.c_fc", arrangement=TRANSPOSED)
    yield from linear(f"{ours}.1.part.down", f"{theirs}.mlp.c_proj", arrangement=TRANSPOSED)
    yield from norm(f"{ours}.0.{place}", f"{theirs}.ln_1")
    yield from norm(f"{ours}.1.{place}", f"{theirs}.ln_2")


FAMILY = Family(
    model_types=("gpt2",),
    template=TEMPLATE,
    tensors=tensors,
    base="transformer.",
    keys=(
        key("vocab_size", "vocab", default=50257),
        key("n_positions", "max_len", default=1024),
        key("n_embd", "dim", default=768),
        key("n_layer", "stack.depth", default=12),
        key("n_head", f"{LOOK}.heads", default=12),
        key("n_inner", f"{FEED}.hidden", default=None),
        key("activation_function", f"{FEED}.activation", default="gelu_new", convert=ACTIVATIONS),
        key("layer_norm_epsilon", "exit_norm.eps", f"{LAYER}.0.norm.eps", f"{LAYER}.1.norm.eps", default=1e-5),
        key("resid_pdrop", f"{LAYER}.0.dropout", f"{LAYER}.1.dropout", default=0.1),
        key("embd_pdrop", "dropout", default=0.1),
        key("attn_pdrop", f"{LOOK}.dropout", default=0.1),
        key("tie_word_embeddings", "head", default=True, convert=TYING),
    ),
    fixed={
        "architectures": ("GPT2LMHeadModel", "GPT2Model"),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "reorder_and_upcast_attn": (False, True),
    },
    harmless=("n_ctx", *SUMMARY),
    unused=("*.attn.bias", "*.attn.masked_bias"),
    copies={"lm_head.weight": "transformer.wte.weight"},
)
