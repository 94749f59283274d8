"""RoBERTa: its masked words, body and classifiers. BERT whose positions begin behind the row of the padding token."""

from collections.abc import Iterator

from anyformer.interop.encoders import (
    CLASSES,
    COMMON,
    FIXED,
    POST_NORM,
    SHAPE,
    bert_entry,
    bert_layers,
    encoder_heads,
    masked_words,
    pooler,
    text_classes,
)
from anyformer.interop.family import Family
from anyformer.interop.mapping import Conversion, Entry, key
from anyformer.models import Encoder
from anyformer.parts.positions.learned import LearnedPosition

WORDS = masked_words("lm_head.dense", "lm_head.layer_norm", "lm_head.bias")
TEXTS = text_classes("classifier.dense", "classifier.out_proj")
HEADS = encoder_heads("Roberta", WORDS, (False, TEXTS), pooler("roberta.pooler.dense"))


def tensors(spec: Encoder) -> Iterator[Entry]:
    yield from bert_entry("roberta.embeddings")
    yield from bert_layers(spec, "roberta.encoder.layer")
    yield from HEADS.tensors(spec.head)


FAMILY = Family(
    model_types=("roberta",),
    template=POST_NORM.with_("position", LearnedPosition(max_len=3, offset=2)).with_("head.activation", "gelu"),
    tensors=tensors,
    base="roberta.",
    keys=(
        key(("architectures", "has pooler.dense.weight"), "head", convert=HEADS.convert),
        *SHAPE[:-1],
        key("max_position_embeddings", "position.max_len"),
        key("max_position_embeddings", "max_len", convert=Conversion(lambda rows: rows - 2, lambda most: most + 2)),
        *CLASSES,
        *COMMON,
    ),
    fixed={**FIXED, "pad_token_id": (1,)},
    unused=("*position_ids", "roberta.pooler.*"),
    copies={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
)
