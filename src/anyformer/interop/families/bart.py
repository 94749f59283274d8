"""BART: BartForConditionalGeneration. Learned positions behind two unused rows, a norm on the token vectors."""

from collections.abc import Iterator

from anyformer.interop.family import Family
from anyformer.interop.mapping import Entry, norm, tensor
from anyformer.interop.sequences import COPIES, FIXED, HARMLESS, KEYS, template
from anyformer.interop.sequences import tensors as shared_tensors
from anyformer.models import EncoderDecoder
from anyformer.parts.norms.layer import LayerNorm
from anyformer.parts.positions.learned import LearnedPosition


def tensors(spec: EncoderDecoder) -> Iterator[Entry]:
    yield from shared_tensors(spec)
    for half in ("encoder", "decoder"):
        yield from tensor(f"{half}.position.table.weight", f"model.{half}.embed_positions.weight")
        yield from norm(f"{half}.entry_norm", f"model.{half}.layernorm_embedding")


FAMILY = Family(
    model_types=("bart",),
    template=template(LearnedPosition(offset=2), LayerNorm()),
    tensors=tensors,
    base="model.",
    keys=KEYS,
    fixed={
        **FIXED,
        "architectures": ("BartForConditionalGeneration",),
        "add_final_layer_norm": (False,),
        "normalize_before": (False,),
        "normalize_embedding": (True,),
        "static_position_embeddings": (False,),
    },
    harmless=(*HARMLESS, "add_bias_logits", "extra_pos_embeddings", "force_bos_token_to_be_generated", "save_step"),
    copies=COPIES,
)
