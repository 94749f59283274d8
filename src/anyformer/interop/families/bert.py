"""BERT: BertForMaskedLM, BertModel with or without its pooler, and its classifiers of texts and of tokens."""

from collections.abc import Iterator

from anyformer.core import HeadSpec
from anyformer.interop.encoders import (
    CLASSES,
    COMMON,
    POST_NORM,
    SHAPE,
    bert_entry,
    bert_layers,
    class_tensors,
    masked_words,
    pooled_head,
    pooler,
    sequence_classes,
    token_classes,
)
from anyformer.interop.family import Family
from anyformer.interop.mapping import Entry, choice, key
from anyformer.models import Encoder
from anyformer.parts.heads.hidden import Hidden
from anyformer.parts.heads.masked_words import MaskedWordsHead
from anyformer.parts.heads.pooled import Pooled

POOLER = "has pooler.dense.weight"
HEADS: dict[tuple[str, bool], HeadSpec] = {
    ("BertForMaskedLM", False): MaskedWordsHead(),
    ("BertForMaskedLM", True): MaskedWordsHead(),  # an older file, with a pooler that is not used
    ("BertForSequenceClassification", True): sequence_classes(),
    ("BertForTokenClassification", False): token_classes(),
    ("BertModel", True): pooled_head(),
    ("BertModel", False): Hidden(),
}


def tensors(spec: Encoder) -> Iterator[Entry]:
    yield from bert_entry("bert.embeddings")
    yield from bert_layers(spec, "bert.encoder.layer")
    if spec.head.scores_words:
        layer = "cls.predictions.transform"
        yield from masked_words(f"{layer}.dense", f"{layer}.LayerNorm", "cls.predictions.bias")
    elif isinstance(spec.head, Pooled):
        yield from pooler("bert.pooler.dense")
    yield from class_tensors(spec.head, "bert.pooler.dense")


FAMILY = Family(
    model_types=("bert",),
    template=POST_NORM,
    tensors=tensors,
    base="bert.",
    keys=(key(("architectures", POOLER), "head", convert=choice(HEADS)), *SHAPE, *CLASSES, *COMMON),
    fixed={"position_embedding_type": ("absolute",), "tie_word_embeddings": (True,)},
    harmless=("pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head",
              "pooler_type"),
    unused=("*position_ids", "bert.pooler.*", "cls.seq_relationship.*"),
    copies={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
)  # fmt: skip
