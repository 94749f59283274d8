"""BigBird with full attention: BigBirdForMaskedLM. BERT's layers.

Its sparse attention repeats blocks in evaluation, which no mask describes: `attention_type` must be "original_full",
which transformers uses too for texts that are short against its blocks.
"""

from collections.abc import Iterator

from anyformer.interop.encoders import COMMON, FIXED, POST_NORM, SHAPE, bert_entry, bert_layers
from anyformer.interop.families.bert import COPIES, UNUSED, WORDS
from anyformer.interop.family import Family
from anyformer.interop.mapping import Entry, choice, key
from anyformer.models import Encoder


def tensors(spec: Encoder) -> Iterator[Entry]:
    yield from bert_entry("bert.embeddings")
    yield from bert_layers(spec, "bert.encoder.layer")
    yield from WORDS.tensors


FAMILY = Family(
    model_types=("big_bird",),
    template=POST_NORM,
    tensors=tensors,
    base="bert.",
    keys=(
        *SHAPE,
        *COMMON,
        key("rescale_embeddings", "embedding.scale", default=False, convert=choice({False: "one", True: "sqrt_dim"})),
    ),
    fixed={
        **FIXED,
        "architectures": ("BigBirdForMaskedLM",),
        "attention_type": ("original_full",),
        "use_bias": (True,),
    },
    harmless=("block_size", "num_random_blocks"),
    unused=UNUSED,
    copies=COPIES,
)
