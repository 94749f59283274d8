"""ELECTRA: ElectraForPreTraining (the discriminator), ElectraForMaskedLM (the generator) and ElectraModel."""

from collections.abc import Iterator

from anyformer.core import HeadSpec
from anyformer.interop.encoders import (
    COMMON,
    POST_NORM,
    SHAPE,
    bert_entry,
    bert_layers,
    class_tensors,
    masked_words,
    token_classes,
)
from anyformer.interop.family import NUM_LABELS, Family
from anyformer.interop.mapping import Conversion, Entry, choice, key, linear
from anyformer.models import Encoder
from anyformer.parts.embeddings.factorized import Factorized
from anyformer.parts.embeddings.plain import Plain
from anyformer.parts.heads.hidden import Hidden
from anyformer.parts.heads.masked_words import MaskedWordsHead
from anyformer.parts.heads.token_classifier import TokenClassifier

HEADS: dict[str, HeadSpec] = {
    "ElectraForPreTraining": TokenClassifier(classes=1, hidden=1),
    "ElectraForMaskedLM": MaskedWordsHead(),
    "ElectraForTokenClassification": token_classes(),
    "ElectraModel": Hidden(),
}
# the discriminator gives one score, whatever classes a config lists
CLASSES = Conversion(
    lambda values: 1 if values[1] == "ElectraForPreTraining" else values[0],
    lambda classes: (classes, None),
)
EMBEDDING = Conversion(
    lambda values: Factorized(width=values[0], bias=True) if values[1] else Plain(),
    lambda embedding: (embedding.get("width"), embedding["kind"] == "factorized"),
)


def tensors(spec: Encoder) -> Iterator[Entry]:
    yield from bert_entry("electra.embeddings")
    if isinstance(spec.embedding, Factorized):
        yield from linear("embedding.up", "electra.embeddings_project")
    yield from bert_layers(spec, "electra.encoder.layer")
    if spec.head.scores_words:
        yield from masked_words(
            "generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head.bias"
        )
    elif isinstance(spec.head, TokenClassifier) and spec.head.hidden is None:
        yield from class_tensors(spec.head, "")
    elif spec.head != Hidden():
        yield from linear("head.layer", "discriminator_predictions.dense")
        yield from linear("head.classes", "discriminator_predictions.dense_prediction")


FAMILY = Family(
    model_types=("electra",),
    template=POST_NORM,
    tensors=tensors,
    base="electra.",
    keys=(
        key("architectures", "head", convert=choice(HEADS)),
        *SHAPE,
        key("hidden_size", "dim", "?head.hidden"),
        key(("embedding_size", "has embeddings_project.weight"), "embedding", convert=EMBEDDING, same_as="hidden_size"),
        key((NUM_LABELS, "architectures"), "?head.classes", default=(2, None), convert=CLASSES),
        *COMMON,
    ),
    fixed={"position_embedding_type": ("absolute",), "tie_word_embeddings": (True,)},
    harmless=("summary_activation", "summary_last_dropout", "summary_type", "summary_use_proj"),
    unused=("*position_ids",),
    copies={
        "generator_lm_head.weight": "electra.embeddings.word_embeddings.weight",
    },
)
