"""RoBERTa: RobertaForMaskedLM and RobertaModel. BERT whose positions begin behind the row of the padding token."""

from collections.abc import Iterator

from anyformer.core import HeadSpec
from anyformer.interop.encoders import (
    COMMON,
    POST_NORM,
    SHAPE,
    bert_entry,
    bert_layers,
    masked_words,
    pooled_head,
    pooler,
)
from anyformer.interop.family import Family
from anyformer.interop.mapping import Conversion, Entry, choice, key
from anyformer.models import Encoder
from anyformer.parts.heads.hidden import Hidden
from anyformer.parts.heads.masked_words import MaskedWordsHead
from anyformer.parts.positions.learned import LearnedPosition

HEADS: dict[tuple[str, bool], HeadSpec] = {
    ("RobertaForMaskedLM", False): MaskedWordsHead(),
    ("RobertaForMaskedLM", True): MaskedWordsHead(),  # an older file, with a pooler that is not used
    ("RobertaModel", True): pooled_head(),
    ("RobertaModel", False): Hidden(),
}


def tensors(spec: Encoder) -> Iterator[Entry]:
    yield from bert_entry("roberta.embeddings")
    yield from bert_layers(spec, "roberta.encoder.layer")
    if spec.head.scores_words:
        yield from masked_words("lm_head.dense", "lm_head.layer_norm", "lm_head.bias")
    elif spec.head.pools:
        yield from pooler("roberta.pooler.dense")


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
        *COMMON,
    ),
    fixed={"position_embedding_type": ("absolute",), "tie_word_embeddings": (True,)},
    unused=("*position_ids", "roberta.pooler.*"),
    copies={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
)
