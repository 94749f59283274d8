"""EuroBERT: EuroBertForMaskedLM, EuroBertForTokenClassification and EuroBertModel. Llama's layers, read both ways."""

from collections.abc import Iterator

from anyformer.interop.encoders import BODY, token_classes
from anyformer.interop.families.llama import COPIES, FIXED, KEYS, LAYERS, UNUSED
from anyformer.interop.families.llama import tensors as llama_tensors
from anyformer.interop.family import NUM_LABELS, Family
from anyformer.interop.mapping import Entry, Variant, Variants, key
from anyformer.interop.shapes import LOOK, layers
from anyformer.models import Encoder
from anyformer.parts.heads.tied import Tied
from anyformer.parts.heads.untied import Untied
from anyformer.parts.norms.rms import RMSNorm

HEADS = Variants(
    {
        ("EuroBertForMaskedLM", False): Variant(Untied()),  # Llama's table has its tensor
        ("EuroBertForMaskedLM", True): Variant(Tied()),
        ("EuroBertForTokenClassification", False): token_classes(),
        ("EuroBertForTokenClassification", True): token_classes(),
        ("EuroBertModel", False): BODY,
        ("EuroBertModel", True): BODY,
    }
)


def tensors(spec: Encoder) -> Iterator[Entry]:
    yield from llama_tensors(spec)
    yield from HEADS.tensors(spec.head)


FAMILY = Family(
    model_types=("eurobert",),
    template=Encoder(vocab=1, dim=2, stack=layers(LAYERS), exit_norm=RMSNorm(), head=Untied()),
    tensors=tensors,
    base="model.",
    keys=(
        key(("architectures", "tie_word_embeddings"), "head", default=(None, False), convert=HEADS.convert),
        key(NUM_LABELS, "?head.classes", default=2),
        *(each for each in KEYS if "tie_word_embeddings" not in each.names),
        key("attention_bias", f"{LOOK}.bias", default=False),
    ),
    fixed={**FIXED, "mlp_bias": (False,)},
    harmless=("classifier_pooling", "clf_pooling", "mask_token_id", "pretraining_tp"),
    unused=UNUSED,
    copies=COPIES,
)
