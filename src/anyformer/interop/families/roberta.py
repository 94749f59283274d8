"""RoBERTa: its masked words, body and classifiers. BERT whose positions begin behind the row of the padding token."""

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
from anyformer.interop.mapping import Conversion, Entry, choice, key
from anyformer.models import Encoder
from anyformer.parts.heads.hidden import Hidden
from anyformer.parts.heads.masked_words import MaskedWordsHead
from anyformer.parts.heads.pooled import Pooled
from anyformer.parts.positions.learned import LearnedPosition

HEADS: dict[tuple[str, bool], HeadSpec] = {
    ("RobertaForMaskedLM", False): MaskedWordsHead(),
    ("RobertaForMaskedLM", True): MaskedWordsHead(),  # an older file, with a pooler that is not used
    ("RobertaForSequenceClassification", False): sequence_classes(),
    ("RobertaForTokenClassification", False): token_classes(),
    ("RobertaModel", True): pooled_head(),
    ("RobertaModel", False): Hidden(),
}


def tensors(spec: Encoder) -> Iterator[Entry]:
    yield from bert_entry("roberta.embeddings")
    yield from bert_layers(spec, "roberta.encoder.layer")
    if spec.head.scores_words:
        yield from masked_words("lm_head.dense", "lm_head.layer_norm", "lm_head.bias")
    elif isinstance(spec.head, Pooled):
        yield from pooler("roberta.pooler.dense")
    yield from class_tensors(spec.head, "classifier.dense", "classifier.out_proj")


FAMILY = Family(
    model_types=("roberta",),
    template=POST_NORM.with_("position", LearnedPosition(max_len=3, offset=2)).with_("head.activation", "gelu"),
    tensors=tensors,
    base="roberta.",
    keys=(
        key(("architectures", "has pooler.dense.weight"), "head", convert=choice(HEADS)),
        *SHAPE[:-1],
        key("max_position_embeddings", "position.max_len"),
        key("max_position_embeddings", "max_len", convert=Conversion(lambda rows: rows - 2, lambda most: most + 2)),
        *CLASSES,
        *COMMON,
    ),
    fixed={"pad_token_id": (1,), "position_embedding_type": ("absolute",), "tie_word_embeddings": (True,)},
    unused=("*position_ids", "roberta.pooler.*"),
    copies={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
)
