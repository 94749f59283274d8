"""What encoder-decoders with biases share (Marian, BART): norms behind the branches, tied words with a bias."""

from collections.abc import Iterator

from anyformer.core import PositionSpec
from anyformer.interop.mapping import ACTIVATIONS, ONE_ROW, Entry, choice, key, linear, norm, tensor
from anyformer.interop.shapes import block, layers
from anyformer.models import Decoder, Encoder, EncoderDecoder
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.combine.cross import Cross
from anyformer.parts.heads.tied import Tied
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.norms.layer import LayerNorm

READ, WRITE = "encoder.stack.blocks.layer.branches", "decoder.stack.blocks.layer.branches"
"""The branches of a layer of each half."""
RESIDUALS = (f"{READ}.0", f"{READ}.1", f"{WRITE}.0", f"{WRITE}.1", f"{WRITE}.2")
LOOKS = (f"{READ}.0.part", f"{WRITE}.0.part", f"{WRITE}.1.part.part")
"""All attentions of both halves, the one to the source last."""
LOOK = Attention(heads=1, bias=True)


def template(position: PositionSpec, entry_norm: LayerNorm | None = None) -> EncoderDecoder:
    """A small model of this shape."""
    read = block(LOOK, MLP(bias=True), norm=LayerNorm(), place="post")
    write = block(LOOK, Cross(part=LOOK), MLP(bias=True), norm=LayerNorm(), place="post")
    return EncoderDecoder(
        encoder=Encoder(vocab=1, dim=2, stack=layers(read), position=position, entry_norm=entry_norm),
        decoder=Decoder(
            vocab=1, dim=2, stack=layers(write), position=position, entry_norm=entry_norm, head=Tied(bias=True)
        ),
    )


KEYS = (
    key("vocab_size", "encoder.vocab", "decoder.vocab"),
    key("d_model", "encoder.dim", "decoder.dim"),
    key("encoder_layers", "encoder.stack.depth"),
    key("decoder_layers", "decoder.stack.depth"),
    key("encoder_attention_heads", f"{LOOKS[0]}.heads"),
    key("decoder_attention_heads", f"{LOOKS[1]}.heads", f"{LOOKS[2]}.heads"),
    key("encoder_ffn_dim", f"{READ}.1.part.hidden"),
    key("decoder_ffn_dim", f"{WRITE}.2.part.hidden"),
    key("max_position_embeddings", "encoder.max_len", "decoder.max_len", default=1024),
    key(
        "activation_function",
        f"{READ}.1.part.activation",
        f"{WRITE}.2.part.activation",
        default="gelu",
        convert=ACTIVATIONS,
    ),
    key(
        "scale_embedding",
        "encoder.embedding.scale",
        "decoder.embedding.scale",
        default=False,
        convert=choice({False: "one", True: "sqrt_dim"}),
    ),
    key("dropout", "encoder.dropout", "decoder.dropout", *(f"{path}.dropout" for path in RESIDUALS), default=0.1),
    key("attention_dropout", *(f"{path}.dropout" for path in LOOKS), default=0.0),
    key("activation_dropout", f"{READ}.1.part.dropout", f"{WRITE}.2.part.dropout", default=0.0),
)
HARMLESS = ("classif_dropout", "decoder_layerdrop", "encoder_layerdrop", "num_hidden_layers")
FIXED = {"is_encoder_decoder": (True,), "tie_word_embeddings": (True,)}
COPIES = dict.fromkeys(
    ("lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"), "model.shared.weight"
)


def tensors(spec: EncoderDecoder) -> Iterator[Entry]:
    """The tensors of both halves, except their positions."""
    yield from tensor("encoder.embedding.weight", "model.shared.weight")
    yield from tensor("decoder.head.bias", "final_logits_bias", ONE_ROW)
    for half, depth in (("encoder", spec.encoder.stack.depth), ("decoder", spec.decoder.stack.depth)):
        for n in range(depth):
            yield from _layer(f"{half}.stack.layers.{n}.branches", f"model.{half}.layers.{n}", half == "decoder")


def _layer(ours: str, theirs: str, cross: bool) -> Iterator[Entry]:
    last = 2 if cross else 1
    yield from linear(f"{ours}.0.part.qkv", *(f"{theirs}.self_attn.{name}_proj" for name in "qkv"))
    yield from linear(f"{ours}.0.part.out", f"{theirs}.self_attn.out_proj")
    yield from norm(f"{ours}.0.after", f"{theirs}.self_attn_layer_norm")
    if cross:
        yield from linear(f"{ours}.1.part.q", f"{theirs}.encoder_attn.q_proj")
        yield from linear(f"{ours}.1.part.kv", *(f"{theirs}.encoder_attn.{name}_proj" for name in "kv"))
        yield from linear(f"{ours}.1.part.out", f"{theirs}.encoder_attn.out_proj")
        yield from norm(f"{ours}.1.after", f"{theirs}.encoder_attn_layer_norm")
    yield from linear(f"{ours}.{last}.part.up", f"{theirs}.fc1")
    yield from linear(f"{ours}.{last}.part.down", f"{theirs}.fc2")
    yield from norm(f"{ours}.{last}.after", f"{theirs}.final_layer_norm")
