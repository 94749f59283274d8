"""Mamba-2: Mamba2ForCausalLM. Selective state spaces with one decay for each head."""

from collections.abc import Iterator
from math import inf

from anyformer.interop.families.mamba import COPIES, FIXED, HARMLESS, KEYS, mamba_body
from anyformer.interop.family import Family
from anyformer.interop.mapping import Entry, key, tensor
from anyformer.interop.shapes import LOOK, TYING, block, layers
from anyformer.models import Decoder
from anyformer.parts.mixers.mamba2 import Mamba2
from anyformer.parts.norms.rms import RMSNorm


def tensors(spec: Decoder) -> Iterator[Entry]:
    yield from mamba_body(spec)
    for n in range(spec.stack.depth):
        part, mixer = f"stack.layers.{n}.branches.0.part", f"backbone.layers.{n}.mixer"
        yield from tensor(f"{part}.step_bias", f"{mixer}.dt_bias")
        yield from tensor(f"{part}.gain", f"{mixer}.norm.weight")


FAMILY = Family(
    model_types=("mamba2",),
    template=Decoder(vocab=1, dim=1, stack=layers(block(Mamba2(), norm=RMSNorm())), exit_norm=RMSNorm()),
    tensors=tensors,
    base="backbone.",
    keys=(
        *KEYS,
        key("head_dim", f"{LOOK}.head_dim", default=64),
        key("n_groups", f"{LOOK}.groups", default=8),
        key("tie_word_embeddings", "head", default=False, convert=TYING),
    ),
    fixed={
        **FIXED,
        "architectures": ("Mamba2ForCausalLM", "Mamba2Model"),
        "time_step_limit": (0.0, inf, {"__float__": "Infinity"}),  # no limit
        "norm_before_gate": (False,),
    },
    # the number of heads follows from the other sizes; the length of a chunk changes only the order of sums
    harmless=(*HARMLESS, "chunk_size", "num_heads", "time_step_rank"),
    copies=COPIES,
    derived=lambda config: {"num_heads": config["expand"] * config["hidden_size"] // config["head_dim"]},
)
