"""Marian, the translators of OPUS-MT: MarianMTModel. Sinusoidal positions, sines before cosines."""

from anyformer.interop.family import Family
from anyformer.interop.sequences import COPIES, FIXED, HARMLESS, KEYS, template, tensors
from anyformer.parts.positions.sinusoidal import Sinusoidal

FAMILY = Family(
    model_types=("marian",),
    template=template(Sinusoidal(layout="halves")),
    tensors=tensors,
    base="model.",
    keys=KEYS,
    fixed={
        **FIXED,
        "architectures": ("MarianMTModel",),
        "add_final_layer_norm": (False,),
        "normalize_before": (False,),
        "normalize_embedding": (False,),
        "share_encoder_decoder_embeddings": (True,),
        "static_position_embeddings": (True,),
    },
    harmless=(
        *HARMLESS,
        "add_bias_logits",
        "decoder_vocab_size",
        "extra_pos_embeddings",
        "force_bos_token_to_be_generated",
    ),
    unused=("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"),  # the sinusoids
    copies=COPIES,
)
