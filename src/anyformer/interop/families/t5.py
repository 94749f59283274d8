"""T5 1.0 (relu, tied and scaled words) and 1.1 (gated gelu, untied): T5ForConditionalGeneration."""

from collections.abc import Iterator
from typing import Any

from anyformer.interop.family import Family
from anyformer.interop.mapping import Conversion, Entry, choice, key, linear, norm, tensor
from anyformer.interop.sequences import LOOKS, READ, RESIDUALS, WRITE
from anyformer.interop.shapes import block, layers
from anyformer.models import Decoder, Encoder, EncoderDecoder
from anyformer.parts.channels.glu import GLU
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.combine.cross import Cross
from anyformer.parts.heads.tied import Tied
from anyformer.parts.heads.untied import Untied
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.norms.rms import RMSNorm
from anyformer.parts.positions.t5_bias import T5Bias

LOOK = Attention(heads=1, head_dim=1, scale=1.0, position=T5Bias())
CROSS = Cross(part=Attention(heads=1, head_dim=1, scale=1.0))
TEMPLATE = EncoderDecoder(
    encoder=Encoder(vocab=1, dim=1, stack=layers(block(LOOK, MLP(), norm=RMSNorm())), exit_norm=RMSNorm()),
    decoder=Decoder(vocab=1, dim=1, stack=layers(block(LOOK, CROSS, MLP(), norm=RMSNorm())), exit_norm=RMSNorm()),
)
FEEDS = (f"{READ}.1.part", f"{WRITE}.2.part")
NORMS = ("encoder.exit_norm", "decoder.exit_norm", *(f"{path}.norm" for path in RESIDUALS))
FEED = choice(
    {
        "relu": MLP(activation="relu"),
        "gated-gelu": GLU(activation="gelu_tanh"),
        "gated-silu": GLU(activation="silu"),
        "gated-relu": GLU(activation="relu"),
    }
)


def head(values: tuple[bool, bool | None, bool]) -> Tied | Untied:
    """Newer releases tie every T5 unless it has a matrix of its own; a tied one without scaled outputs is a 1.1."""
    tied, scaled, has_matrix = values
    scaled = tied if scaled is None else scaled
    if not tied or (has_matrix and not scaled):
        return Untied()
    return Tied(scale="rsqrt_dim" if scaled else "one")


def head_keys(spec: dict[str, Any]) -> tuple[bool, bool, bool]:
    return spec["kind"] == "tied", spec.get("scale") == "rsqrt_dim", spec["kind"] == "untied"


def tensors(spec: EncoderDecoder) -> Iterator[Entry]:
    yield from tensor("encoder.embedding.weight", "shared.weight")
    if spec.decoder.head == Untied():
        yield from linear("decoder.head.words", "lm_head", bias=False)
    feed = next(iter(spec.encoder.stack.blocks.values())).branches[-1].part
    ups = ("wi_0", "wi_1") if FEED.theirs(feed.to_dict()).startswith("gated") else ("wi",)
    for half, stack, last in (("encoder", spec.encoder.stack, 1), ("decoder", spec.decoder.stack, 2)):
        first = f"{half}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        yield from tensor(f"shared.owned.{half}/t5_bias.weight", first)  # all layers use that of the first
        yield from norm(f"{half}.exit_norm", f"{half}.final_layer_norm", bias=False)
        for n in range(stack.depth):
            ours, theirs = f"{half}.stack.layers.{n}.branches", f"{half}.block.{n}.layer"
            look, cross, dense = (
                f"{theirs}.{m}" for m in ("0.SelfAttention", "1.EncDecAttention", f"{last}.DenseReluDense")
            )
            yield from linear(f"{ours}.0.part.qkv", *(f"{look}.{name}" for name in "qkv"), bias=False)
            yield from linear(f"{ours}.0.part.out", f"{look}.o", bias=False)
            if last == 2:
                yield from linear(f"{ours}.1.part.q", f"{cross}.q", bias=False)
                yield from linear(f"{ours}.1.part.kv", f"{cross}.k", f"{cross}.v", bias=False)
                yield from linear(f"{ours}.1.part.out", f"{cross}.o", bias=False)
            yield from linear(f"{ours}.{last}.part.up", *(f"{dense}.{up}" for up in ups), bias=False)
            yield from linear(f"{ours}.{last}.part.down", f"{dense}.wo", bias=False)
            for branch in range(last + 1):
                yield from norm(f"{ours}.{branch}.before", f"{theirs}.{branch}.layer_norm", bias=False)


FAMILY = Family(
    model_types=("t5",),
    template=TEMPLATE,
    tensors=tensors,
    keys=(
        key("feed_forward_proj", *FEEDS, default="relu", convert=FEED),
        key(
            ("tie_word_embeddings", "scale_decoder_outputs", "has lm_head.weight"),
            "decoder.head",
            default=(True, None, None),
            convert=Conversion(head, head_keys),
        ),
        key("vocab_size", "encoder.vocab", "decoder.vocab"),
        key("d_model", "encoder.dim", "decoder.dim"),
        key("num_layers", "encoder.stack.depth"),
        key("num_decoder_layers", "decoder.stack.depth", same_as="num_layers"),
        key("num_heads", *(f"{path}.heads" for path in LOOKS)),
        key("d_kv", *(f"{path}.head_dim" for path in LOOKS)),
        key("d_ff", *(f"{path}.hidden" for path in FEEDS)),
        key("relative_attention_num_buckets", *(f"{path}.position.buckets" for path in LOOKS[:2]), default=32),
        key("relative_attention_max_distance", *(f"{path}.position.max_distance" for path in LOOKS[:2]), default=128),
        key("layer_norm_epsilon", *(f"{path}.eps" for path in NORMS), default=1e-6),
        key(
            "dropout_rate",
            *(f"{path}.dropout" for path in ("encoder", "decoder", *RESIDUALS, *LOOKS, *FEEDS)),
            default=0.1,
        ),
    ),
    fixed={"architectures": ("T5ForConditionalGeneration",), "is_encoder_decoder": (True,)},
    harmless=("dense_act_fn", "is_gated_act", "n_positions"),
    unused=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),  # in files of 2020
    copies=dict.fromkeys(
        ("lm_head.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"), "shared.weight"
    ),
)
