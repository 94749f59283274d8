"""The files by which sentence-transformers makes a vector of a text: a pool over the outputs, then length 1."""

from pathlib import Path

from anyformer.core import ModelSpec
from anyformer.interop.writing import write_json
from anyformer.models.single import Single
from anyformer.parts.heads.hidden import Hidden
from anyformer.parts.heads.pooled import Pooled

MODULES, POOLING, LIMITS = "modules.json", "1_Pooling", "sentence_bert_config.json"
MODES = {
    "first": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "last": "pooling_mode_lasttoken",
}
"""Pool -> the key of sentence-transformers that chooses it."""
_STEPS = (("Transformer", ""), ("Pooling", POOLING), ("Normalize", "2_Normalize"))


def body_of(spec: ModelSpec) -> ModelSpec:
    """The model without its pool, if sentence-transformers has the same pool; else the model."""
    return spec.with_head(Hidden()) if pool_of(spec) else spec


def pool_of(spec: ModelSpec) -> str | None:
    """The pool of a head that is nothing but a pool which sentence-transformers has; None for any other head."""
    head = spec.head if isinstance(spec, Single) else None
    plain = isinstance(head, Pooled) and head.layer == "none" and head.pool.kind in MODES
    return head.pool.kind if plain and isinstance(head, Pooled) else None


def write_modules(folder: Path, spec: ModelSpec, pool: str, *, unit: bool) -> None:
    """Writes the steps of sentence-transformers: the model, the pool, and division by the length if `unit`."""
    steps = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (kind, path) in enumerate(_STEPS if unit else _STEPS[:-1])
    ]
    write_json(folder / MODULES, steps)
    write_json(folder / LIMITS, {"max_seq_length": spec.input_stack.max_len, "do_lower_case": False})
    (folder / POOLING).mkdir()
    modes = {key: name == pool for name, key in MODES.items()}
    write_json(folder / POOLING / "config.json", {"word_embedding_dimension": spec.input_stack.dim, **modes})
