"""Every sequence model as interchangeable parts. The names below load on first use, so that importing is quick."""

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "anyformer.core": (
        "And", "Causal", "Cost", "CostTree", "Frame", "Full", "Marks", "MaskRule", "Memory", "Model", "ModelSpec", "Or",
        "Out", "Part", "PartSpec", "Segment", "Site", "Spec", "Work", "capture", "cost", "decode", "detach", "fork",
        "nbytes", "reorder",
    ),
    "anyformer.parts.channels.glu": ("GLU",),
    "anyformer.parts.channels.mlp": ("MLP",),
    "anyformer.parts.combine.cross": ("Cross",),
    "anyformer.parts.masks.window": ("Window",),
    "anyformer.parts.mixers.attention": ("Attention",),
    "anyformer.parts.norms.layer": ("LayerNorm",),
    "anyformer.parts.norms.rms": ("RMSNorm",),
    "anyformer.parts.positions.rope": ("Rope",),
    "anyformer.generation.engine": ("generate",),
    "anyformer.models": ("Block", "Branch", "Decoder", "Encoder", "EncoderDecoder", "Stack"),
    "anyformer.study": ("compare",),
    "anyformer.training": ("Recipe", "Run", "Step", "Trainer", "load", "train"),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'anyformer' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*_HOME_OF, "__version__"])
