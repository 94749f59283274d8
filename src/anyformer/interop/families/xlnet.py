"""XLNet: XLNetLMHeadModel and XLNetModel, reading all tokens at once. Transformer-XL's positions, norms behind.

The query stream of its pre-training, its token types and its memory of earlier segments are left out.
"""

from collections.abc import Iterator

from torch import Tensor

from anyformer.core import HeadSpec
from anyformer.interop.family import Family
from anyformer.interop.mapping import ACTIVATIONS, Arrangement, Entry, choice, key, linear, norm, tensor
from anyformer.interop.shapes import FEED, LAYER, LOOK, block, layers, part_of
from anyformer.models import Encoder
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.heads.hidden import Hidden
from anyformer.parts.heads.tied import Tied
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.norms.layer import LayerNorm
from anyformer.parts.positions.xl import XL

NORM = LayerNorm(eps=1e-12)
LAYERS = block(Attention(heads=1, head_dim=1, position=XL()), MLP(bias=True), norm=NORM, place="post")
TEMPLATE = Encoder(vocab=1, dim=2, stack=layers(LAYERS), head=Tied(bias=True))
HEADS: dict[str, HeadSpec] = {"XLNetLMHeadModel": Tied(bias=True), "XLNetModel": Hidden()}


def tensors(spec: Encoder) -> Iterator[Entry]:
    heads = part_of(spec, 0, Attention).heads

    def split(x: Tensor) -> Tensor:
        return x.view(len(x), heads, -1)  # [d, h c] -> [d h c]

    from_heads, to_heads = (
        Arrangement(lambda x: x.flatten(1).T, lambda x: split(x.T.contiguous())),
        Arrangement(lambda x: x.flatten(1), split),
    )
    yield from tensor("embedding.weight", "transformer.word_embedding.weight")
    if spec.head != Hidden():
        yield from tensor("head.bias", "lm_loss.bias")
    for n in range(spec.stack.depth):
        ours, theirs = f"stack.layers.{n}.branches", f"transformer.layer.{n}"
        yield Entry(f"{ours}.0.part.qkv.weight", tuple(f"{theirs}.rel_attn.{name}" for name in "qkv"), from_heads)
        yield from tensor(f"{ours}.0.part.out.weight", f"{theirs}.rel_attn.o", to_heads)
        yield from tensor(f"{ours}.0.part.position.project.weight", f"{theirs}.rel_attn.r", from_heads)
        yield from tensor(f"{ours}.0.part.position.unshared.u", f"{theirs}.rel_attn.r_w_bias")
        yield from tensor(f"{ours}.0.part.position.unshared.v", f"{theirs}.rel_attn.r_r_bias")
        yield from linear(f"{ours}.1.part.up", f"{theirs}.ff.layer_1")
        yield from linear(f"{ours}.1.part.down", f"{theirs}.ff.layer_2")
        yield from norm(f"{ours}.0.after", f"{theirs}.rel_attn.layer_norm")
        yield from norm(f"{ours}.1.after", f"{theirs}.ff.layer_norm")


FAMILY = Family(
    model_types=("xlnet",),
    template=TEMPLATE,
    tensors=tensors,
    fills=False,
    base="transformer.",
    keys=(
        key("architectures", "head", convert=choice(HEADS)),
        key("vocab_size", "vocab"),
        key("d_model", "dim"),
        key("n_layer", "stack.depth"),
        key("n_head", f"{LOOK}.heads"),
        key("d_head", f"{LOOK}.head_dim", default=None),
        key("d_inner", f"{FEED}.hidden"),
        key("ff_activation", f"{FEED}.activation", default="gelu", convert=ACTIVATIONS),
        key("layer_norm_eps", f"{LAYER}.0.norm.eps", f"{LAYER}.1.norm.eps", default=1e-12),
        key("dropout", "dropout", f"{LAYER}.0.dropout", f"{LAYER}.1.dropout", f"{FEED}.dropout", f"{LOOK}.dropout",
            default=0.1),
    ),
    fixed={
        "attn_type": ("bi",),
        "bi_data": (False,),
        "clamp_len": (-1,),
        "same_length": (False,),
        "tie_word_embeddings": (True,),
        "untie_r": (True,),
    },
    harmless=("end_n_top", "mem_len", "reuse_len", "start_n_top", "summary_activation", "summary_last_dropout",
              "summary_type", "summary_use_proj", "use_mems_eval", "use_mems_train"),
    unused=("*mask_emb", "*.r_s_bias", "*.seg_embed"),
    copies={"lm_loss.weight": "transformer.word_embedding.weight"},
)  # fmt: skip
