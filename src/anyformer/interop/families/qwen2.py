"""Qwen2: Qwen2ForCausalLM. Llama's layers; queries, keys and values have biases, the last projection has none."""

from functools import partial

from anyformer.interop.families.llama import COPIES, FIXED, KEYS, TEMPLATE, UNUSED, tensors
from anyformer.interop.family import Family
from anyformer.interop.shapes import LOOK

FAMILY = Family(
    model_types=("qwen2",),
    template=TEMPLATE.with_(f"{LOOK}.bias", True),
    tensors=partial(tensors, out_bias=False),
    base="model.",
    keys=KEYS,
    fixed={
        **FIXED,
        "architectures": ("Qwen2ForCausalLM", "Qwen2Model"),
        "use_sliding_window": (False,),
        "use_mrope": (False,),
        "layer_types": ("full_attention",),
    },
    harmless=("sliding_window", "max_window_layers"),  # without use_sliding_window they are not used
    unused=UNUSED,
    copies=COPIES,
)
