"""The first GPT: OpenAIGPTLMHeadModel. Norms behind the branches, learned positions, tied words."""

from collections.abc import Iterator

from anyformer.interop.families.gpt2 import SUMMARY, gpt_layer
from anyformer.interop.family import Family
from anyformer.interop.mapping import Entry, choice, key, tensor
from anyformer.interop.shapes import FEED, LAYER, LOOK, block, layers
from anyformer.models import Decoder
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.norms.layer import LayerNorm
from anyformer.parts.positions.learned import LearnedPosition

LAYERS = block(Attention(heads=1, bias=True), MLP(bias=True), norm=LayerNorm(), place="post")
TEMPLATE = Decoder(vocab=1, dim=1, stack=layers(LAYERS), position=LearnedPosition())


def tensors(spec: Decoder) -> Iterator[Entry]:
    yield from tensor("embedding.weight", "transformer.tokens_embed.weight")
    yield from tensor("position.table.weight", "transformer.positions_embed.weight")
    for n in range(spec.stack.depth):
        yield from gpt_layer(f"stack.layers.{n}.branches", f"transformer.h.{n}", "after")


FAMILY = Family(
    model_types=("openai-gpt",),
    template=TEMPLATE,
    tensors=tensors,
    base="transformer.",
    keys=(
        key("vocab_size", "vocab", default=40478),
        key("n_positions", "max_len", default=512),
        key("n_embd", "dim", default=768),
        key("n_layer", "stack.depth", default=12),
        key("n_head", f"{LOOK}.heads", default=12),
        # their "gelu" is the tanh approximation
        key(
            "afn",
            f"{FEED}.activation",
            default="gelu",
            convert=choice({"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}),
        ),
        key("layer_norm_epsilon", f"{LAYER}.0.norm.eps", f"{LAYER}.1.norm.eps", default=1e-5),
        key("resid_pdrop", f"{LAYER}.0.dropout", f"{LAYER}.1.dropout", default=0.1),
        key("embd_pdrop", "dropout", default=0.1),
        key("attn_pdrop", f"{LOOK}.dropout", default=0.1),
    ),
    fixed={
        "architectures": ("OpenAIGPTLMHeadModel", "OpenAIGPTModel"),
        "tie_word_embeddings": (True,),
        "predict_special_tokens": (True,),
    },
    harmless=("n_ctx", "n_special", *SUMMARY),
    unused=("*.attn.bias", "*position_ids"),
    copies={"lm_head.weight": "transformer.tokens_embed.weight"},
)
