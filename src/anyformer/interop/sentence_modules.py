"""The modules of a sentence-embedding folder: how the states of a model become one vector, and whether its length is 1.

modules.json lists them: a transformer, a pooling with its config, and perhaps a normalisation. Any other module would
change the vectors, so it is refused by name.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from anyformer.core import ModelSpec, PoolSpec
from anyformer.errors import CheckpointError
from anyformer.interop.reading import CONFIG, is_bare_name, parse_json, read_json
from anyformer.interop.writing import write_json
from anyformer.parts.heads.hidden import Hidden
from anyformer.parts.heads.pooled import Pooled
from anyformer.parts.pools.first import First
from anyformer.parts.pools.last import Last
from anyformer.parts.pools.max import Max
from anyformer.parts.pools.mean import Mean

MODULES, LIMITS = "modules.json", "sentence_bert_config.json"
PACKAGE = "sentence_transformers."
KNOWN = ("Transformer", "Pooling", "Normalize")
FOLDERS = ("", "1_Pooling", "2_Normalize")
"""Where the modules are written."""
POOLS: Mapping[str, PoolSpec] = {"cls": First(), "max": Max(), "mean": Mean(), "lasttoken": Last()}
MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Key of an older config of the pooling -> its mode."""
WIDTHS = ("embedding_dimension", "word_embedding_dimension")
_TEXT = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
FIXED: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    LIMITS: {
        "do_lower_case": (False,),
        "transformer_task": ("feature-extraction",),
        "modality_config": (_TEXT,),
        "module_output_name": ("token_embeddings",),
        "processing_kwargs": ({}, None),
    },
    "config_sentence_transformers.json": {
        "default_prompt_name": (None,),
        "model_type": ("SentenceTransformer",),
        "truncate_dim": (None,),
    },
}
"""Other files -> their keys of which only these values are supported."""
HARMLESS = {
    LIMITS: ("max_seq_length", "unpad_inputs"),
    "config_sentence_transformers.json": ("__version__", "prompts", "similarity_fn_name"),
}


class SentenceModules(NamedTuple):
    """What follows the transformer of a sentence-embedding folder."""

    pool: PoolSpec
    unit: bool
    """True if vectors are scaled to length 1."""
    width: int | None
    """Channels of the states that are pooled, as the config of the pooling has them."""
    longest: int | None
    """Number of tokens at which a text is cut, special ones included; None: as many as the model reads."""


def read_modules(folder: Path) -> SentenceModules | None:
    """The modules of a folder; None if it has no modules.json."""
    file = folder / MODULES
    if not file.is_file():
        return None
    entries = parse_json(file)
    if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
        raise CheckpointError(f"{file}: should hold a list of modules.")
    names = [_name(file, str(entry.get("type"))) for entry in entries]
    if tuple(names) not in (KNOWN[:2], KNOWN):
        raise CheckpointError(
            f"{file}: the modules must be {', '.join(KNOWN[:2])} and perhaps {KNOWN[2]}, got {names}."
        )
    if entries[0].get("path"):
        raise CheckpointError(
            f"{file}: the transformer must be in this folder, not in {str(entries[0]['path'])[:40]!r}."
        )
    where = entries[1].get("path")
    if not is_bare_name(where):
        raise CheckpointError(f"{file}: {str(where)[:40]!r} is not the name of a folder in this one.")
    pool, width = _pool(folder / where / CONFIG)
    return SentenceModules(pool, len(names) == len(KNOWN), width, _longest(folder))


def _name(file: Path, kind: str) -> str:
    name = kind.rpartition(".")[2]
    if not kind.startswith(PACKAGE) or name not in KNOWN:
        raise CheckpointError(f"{file}: the module {kind[:80]!r} has no counterpart. Known: {', '.join(KNOWN)}.")
    return name


def _pool(file: Path) -> tuple[PoolSpec, int | None]:
    """The pool that the config of a pooling describes, and its width."""
    facts = read_json(file)
    known = {*MODES, *WIDTHS, "pooling_mode", "include_prompt"}
    _refuse_unknown(file, [name for name in facts if name not in known])
    modes = facts.get("pooling_mode", [mode for name, mode in MODES.items() if facts.get(name)])
    modes = [modes] if isinstance(modes, str) else modes
    if not isinstance(modes, list) or len(modes) != 1 or modes[0] not in POOLS:
        raise CheckpointError(f"{file}: the pooling must be one of {', '.join(POOLS)}, got {str(modes)[:80]}.")
    return POOLS[modes[0]], next((facts[name] for name in WIDTHS if name in facts), None)


def _longest(folder: Path) -> int | None:
    """The length at which texts are cut; CheckpointError if one of the other files changes the vectors."""
    for name, fixed in FIXED.items():
        file = folder / name
        facts = read_json(file) if file.is_file() else {}
        _refuse_unknown(file, [key for key in facts if key not in fixed and key not in HARMLESS[name]])
        for key, values in fixed.items():
            if key in facts and facts[key] not in values:
                raise CheckpointError(f"{file}: {key}: must be {values[0]!r}, got {str(facts[key])[:80]}.")
    places = ((LIMITS, "max_seq_length"), ("tokenizer_config.json", "model_max_length"))
    for name, key in places:
        length = (read_json(folder / name) if (folder / name).is_file() else {}).get(key)
        if isinstance(length, int) and length > 0:
            return length
    return None


def _refuse_unknown(file: Path, names: Sequence[str]) -> None:
    if names:
        raise CheckpointError(f"{file}: {names[0][:80]}: is not a known key, so it may change the vectors.")


def body_of(spec: ModelSpec) -> ModelSpec:
    """The model without its pool, if sentence-transformers has the same pool; else the model."""
    return spec.with_head(Hidden()) if pool_of(spec) else spec


def pool_of(spec: ModelSpec) -> PoolSpec | None:
    """The pool of a head that is nothing but a pool which sentence-transformers has; None for any other head."""
    head = spec.output_stack.head
    return next((pool for pool in POOLS.values() if head == Pooled(pool=pool)), None)


def write_modules(folder: Path, spec: ModelSpec, pool: PoolSpec, *, unit: bool) -> None:
    """Writes the modules: the model, the pool, and division by the length if `unit`."""
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"{PACKAGE}models.{name}"}
        for index, (name, path) in enumerate(zip(KNOWN, FOLDERS, strict=True))
    ]
    write_json(folder / MODULES, modules if unit else modules[:-1])
    write_json(folder / LIMITS, {"max_seq_length": spec.input_stack.max_len, "do_lower_case": False})
    pooling = folder / FOLDERS[1]
    pooling.mkdir()
    modes = {key: POOLS[mode] == pool for key, mode in MODES.items() if mode in POOLS}
    write_json(pooling / CONFIG, {"word_embedding_dimension": spec.input_stack.dim, **modes})
