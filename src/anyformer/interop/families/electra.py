"""ELECTRA: ElectraForPreTraining (the discriminator), ElectraForMaskedLM (the generator) and ElectraModel."""

from collections.abc import Iterator

from anyformer.interop.encoders import (
    BODY,
    COMMON,
    FIXED,
    POST_NORM,
    SHAPE,
    bert_entry,
    bert_layers,
    masked_words,
    token_classes,
)
from anyformer.interop.family import NUM_LABELS, Family
from anyformer.interop.mapping import Conversion, Entry, Variant, Variants, key, linear
from anyformer.models import Encoder
from anyformer.parts.embeddings.factorized import Factorized
from anyformer.parts.embeddings.plain import Plain
from anyformer.parts.heads.token_classifier import TokenClassifier

WORDS, SCORE = "generator_predictions", "discriminator_predictions"
HEADS = Variants(
    {
        "ElectraForPreTraining": Variant(
            TokenClassifier(classes=1, hidden=1),
            (*linear("head.layer", f"{SCORE}.dense"), *linear("head.classes", f"{SCORE}.dense_prediction")),
        ),
        "ElectraForMaskedLM": masked_words(f"{WORDS}.dense", f"{WORDS}.LayerNorm", "generator_lm_head.bias"),
        "ElectraForTokenClassification": token_classes(),
        "ElectraModel": BODY,
    }
)
# the discriminator gives one score, whatever classes a config lists
CLASSES = Conversion(
    lambda values: 1 if values[1] == "ElectraForPreTraining" else values[0],
    lambda classes: (classes, None),
)
EMBEDDINGS = Variants(
    {
        False: Variant(Plain()),
        True: Variant(Factorized(bias=True), (*linear("embedding.up", "electra.embeddings_project"),)),
    }
)


def tensors(spec: Encoder) -> Iterator[Entry]:
    yield from bert_entry("electra.embeddings")
    yield from EMBEDDINGS.tensors(spec.embedding)
    yield from bert_layers(spec, "electra.encoder.layer")
    yield from HEADS.tensors(spec.head)


FAMILY = Family(
    model_types=("electra",),
    template=POST_NORM,
    tensors=tensors,
    base="electra.",
    keys=(
        key("architectures", "head", convert=HEADS.convert),
        *SHAPE,
        key("hidden_size", "dim", "?head.hidden"),
        key("has embeddings_project.weight", "embedding", convert=EMBEDDINGS.convert),
        key("embedding_size", "?embedding.width", same_as="hidden_size"),
        key((NUM_LABELS, "architectures"), "?head.classes", default=(2, None), convert=CLASSES),
        *COMMON,
    ),
    fixed=FIXED,
    harmless=("summary_activation", "summary_last_dropout", "summary_type", "summary_use_proj"),
    unused=("*position_ids",),
    copies={
        "generator_lm_head.weight": "electra.embeddings.word_embeddings.weight",
    },
    derived=lambda config: {"embedding_size": config["hidden_size"]},  # unless the table is narrower
)
