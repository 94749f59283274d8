"""BERT: BertForMaskedLM, BertModel with or without its pooler, and its classifiers of texts and of tokens."""

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
from anyformer.interop.mapping import Entry, key
from anyformer.models import Encoder

LAYER = "cls.predictions.transform"
WORDS = masked_words(f"{LAYER}.dense", f"{LAYER}.LayerNorm", "cls.predictions.bias")
HEADS = encoder_heads("Bert", WORDS, (True, text_classes("bert.pooler.dense")), pooler("bert.pooler.dense"))


def tensors(spec: Encoder) -> Iterator[Entry]:
    yield from bert_entry("bert.embeddings")
    yield from bert_layers(spec, "bert.encoder.layer")
    yield from HEADS.tensors(spec.head)


UNUSED = ("*position_ids", "bert.pooler.*", "cls.seq_relationship.*")
COPIES = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}

FAMILY = Family(
    model_types=("bert",),
    template=POST_NORM,
    tensors=tensors,
    base="bert.",
    keys=(
        key(("architectures", "has pooler.dense.weight"), "head", convert=HEADS.convert),
        *SHAPE,
        *CLASSES,
        *COMMON,
    ),
    fixed=FIXED,
    harmless=("pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head",
              "pooler_type"),
    unused=UNUSED,
    copies=COPIES,
)  # fmt: skip
