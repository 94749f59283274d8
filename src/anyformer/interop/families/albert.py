"""ALBERT: its masked words, body and classifiers. One set of weights for all layers, a narrow embedding."""

from collections.abc import Iterator

from anyformer.interop.encoders import (
    CLASSES,
    COMMON,
    FIXED,
    POST_NORM,
    SHAPE,
    bert_entry,
    encoder_heads,
    masked_words,
    pooler,
    text_classes,
)
from anyformer.interop.family import Family
from anyformer.interop.mapping import Entry, key, linear, norm
from anyformer.models import Encoder
from anyformer.parts.embeddings.factorized import Factorized

WORDS = masked_words("predictions.dense", "predictions.LayerNorm", "predictions.bias")
HEADS = encoder_heads("Albert", WORDS, (True, text_classes("albert.pooler")), pooler("albert.pooler"))


def tensors(spec: Encoder) -> Iterator[Entry]:
    yield from bert_entry("albert.embeddings")
    yield from linear("embedding.up", "albert.encoder.embedding_hidden_mapping_in")
    for n, group in enumerate(spec.stack.blocks.values()):
        ours = f"stack.layers.shared/{group.share}.branches"
        theirs = f"albert.encoder.albert_layer_groups.{n}.albert_layers.0"
        yield from linear(f"{ours}.0.part.qkv", *(f"{theirs}.attention.{name}" for name in ("query", "key", "value")))
        yield from linear(f"{ours}.0.part.out", f"{theirs}.attention.dense")
        yield from linear(f"{ours}.1.part.up", f"{theirs}.ffn")
        yield from linear(f"{ours}.1.part.down", f"{theirs}.ffn_output")
        yield from norm(f"{ours}.0.after", f"{theirs}.attention.LayerNorm")
        yield from norm(f"{ours}.1.after", f"{theirs}.full_layer_layer_norm")
    yield from HEADS.tensors(spec.head)


FAMILY = Family(
    model_types=("albert",),
    template=POST_NORM.with_("embedding", Factorized(bias=True)).with_("stack.blocks.layer.share", "layer"),
    tensors=tensors,
    base="albert.",
    keys=(
        key(("architectures", "has pooler.weight"), "head", convert=HEADS.convert),
        key("embedding_size", "embedding.width", default=128),
        *SHAPE,
        *CLASSES,
        *COMMON,
    ),
    fixed={**FIXED, "inner_group_num": (1,), "num_hidden_groups": (1,)},
    harmless=("classifier_dropout_prob", "down_scale_factor", "gap_size", "layers_to_keep", "net_structure_type",
              "num_memory_blocks"),
    unused=("*position_ids", "albert.pooler.*", "sop_classifier.*"),
    copies={
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
)  # fmt: skip
