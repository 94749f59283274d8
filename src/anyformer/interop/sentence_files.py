"""The files by which sentence-transformers makes a vector of a text: a pool over the outputs, then length 1."""

from pathlib import Path

from anyformer.core import ModelSpec, PoolSpec
from anyformer.interop.sentence_modules import MODES, MODULES, POOLS
from anyformer.interop.writing import write_json
from anyformer.parts.heads.hidden import Hidden
from anyformer.parts.heads.pooled import Pooled

POOLING, LIMITS = "1_Pooling", "sentence_bert_config.json"
_STEPS = (("Transformer", ""), ("Pooling", POOLING), ("Normalize", "2_Normalize"))


def body_of(spec: ModelSpec) -> ModelSpec:
    """The model without its pool, if sentence-transformers has the same pool; else the model."""
    return spec.with_head(Hidden()) if pool_of(spec) else spec


def pool_of(spec: ModelSpec) -> PoolSpec | None:
    """The pool of a head that is nothing but a pool which sentence-transformers has; None for any other head."""
    head = spec.output_stack.head
    return next((pool for pool in POOLS.values() if head == Pooled(pool=pool)), None)


def write_modules(folder: Path, spec: ModelSpec, pool: PoolSpec, *, unit: bool) -> None:
    """Writes the steps of sentence-transformers: the model, the pool, and division by the length if `unit`."""
    steps = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (kind, path) in enumerate(_STEPS if unit else _STEPS[:-1])
    ]
    write_json(folder / MODULES, steps)
    write_json(folder / LIMITS, {"max_seq_length": spec.input_stack.max_len, "do_lower_case": False})
    (folder / POOLING).mkdir()
    modes = {key: POOLS[mode] == pool for key, mode in MODES.items() if mode in POOLS}
    write_json(folder / POOLING / "config.json", {"word_embedding_dimension": spec.input_stack.dim, **modes})
