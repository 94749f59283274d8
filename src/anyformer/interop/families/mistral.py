"""Mistral: MistralForCausalLM. Llama's layers, with a sliding window."""

from anyformer.interop.families.llama import COPIES, FIXED, KEYS, TEMPLATE, UNUSED, tensors
from anyformer.interop.family import Family
from anyformer.interop.mapping import Conversion, key
from anyformer.interop.shapes import LOOK
from anyformer.parts.masks.window import Window

WINDOW = Conversion(
    lambda size: None if size is None else Window(size=size),
    lambda mask: None if mask is None else mask["size"],
)

FAMILY = Family(
    model_types=("mistral",),
    template=TEMPLATE,
    tensors=tensors,
    base="model.",
    keys=(*KEYS, key("sliding_window", f"{LOOK}.mask", default=4096, convert=WINDOW)),
    fixed={**FIXED, "architectures": ("MistralForCausalLM", "MistralModel")},
    unused=UNUSED,
    copies=COPIES,
)
