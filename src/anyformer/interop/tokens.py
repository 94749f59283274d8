"""The tokenizer.json of a Hugging Face folder, with the special tokens that its configs name for each role."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Library

from anyformer.core import ModelSpec
from anyformer.data.tokenizers.tokenizer import Tokenizer
from anyformer.data.tokenizers.vocabulary import NAMES, with_roles
from anyformer.disk import CHAT_TEMPLATE
from anyformer.errors import CheckpointError, DataError
from anyformer.interop.reading import read_json

FILE = "tokenizer.json"
CONFIGS = ("tokenizer_config.json", "special_tokens_map.json")
MOST_TEMPLATE_BYTES = 1 << 18
MOST_BYTES = 1 << 26
"""Largest tokenizer.json; one with a quarter of a million tokens has 33 MB."""


def read_tokenizer(folder: Path, config: Mapping[str, Any], spec: ModelSpec) -> Tokenizer | None:
    """The tokenizer of a model; None if its folder has no tokenizer.json."""
    file = folder / FILE
    if not file.is_file():
        return None
    text, ids = _read(file, spec)
    roles = _roles(ids, _named(folder), config, spec)
    try:
        return Tokenizer(json.dumps(with_roles(json.loads(text), roles, ids)))
    except DataError as error:
        raise CheckpointError(f"{file}: {error}") from None


def roles_of(folder: Path, config: Mapping[str, Any], spec: ModelSpec) -> dict[str, str]:
    """Role -> its token, for a folder that has a tokenizer.json."""
    return _roles(_read(folder / FILE, spec)[1], _named(folder), config, spec)


def read_chat_template(folder: Path) -> str | None:
    """The chat template of a folder, which is not run here; None if it has none."""
    if (file := folder / CHAT_TEMPLATE).is_file():
        if (size := file.stat().st_size) > MOST_TEMPLATE_BYTES:
            raise CheckpointError(f"{file}: has {size:,} bytes, at most {MOST_TEMPLATE_BYTES:,} are read.")
        return file.read_text(encoding="utf-8", errors="replace")
    file = folder / CONFIGS[0]
    template = read_json(file).get("chat_template") if file.is_file() else None
    if isinstance(template, list):  # several, by name
        named = {each.get("name"): each.get("template") for each in template if isinstance(each, dict)}
        template = named.get("default")
    return template if isinstance(template, str) and template else None


def _read(file: Path, spec: ModelSpec) -> tuple[str, dict[str, int]]:
    """The text of a tokenizer.json, and its tokens with their ids."""
    if (size := file.stat().st_size) > MOST_BYTES:
        raise CheckpointError(f"{file}: has {size:,} bytes, at most {MOST_BYTES:,} are read.")
    try:
        text = file.read_text(encoding="utf-8")
        library = Library.from_str(text)
    except Exception as error:  # the library raises nothing more precise
        raise CheckpointError(f"{file}: is not a tokenizer.json ({str(error)[:200]}).") from None
    ids = library.get_vocab()
    rows = spec.input_stack.vocabulary
    if not ids or max(ids.values()) >= rows:
        raise CheckpointError(f"{file}: has the id {max(ids.values(), default=-1)}, the model {rows} ids from 0 on.")
    return text, ids


def _roles(
    ids: Mapping[str, int], named: Mapping[str, str], config: Mapping[str, Any], spec: ModelSpec
) -> dict[str, str]:
    """Role -> its token: as the configs name it, by its usual names, or else the token that ends a text."""
    tokens = {index: name for name, index in ids.items()}

    def candidates(role: str) -> Iterator[str]:
        if role == "bos" and spec.needs_source:  # what a decoder starts with
            yield tokens.get(_first(config.get("decoder_start_token_id", config.get("pad_token_id"))), "")
        yield named.get(f"{role}_token", "")
        yield tokens.get(_first(config.get(f"{role}_token_id")), "")
        yield from NAMES[role]

    roles = {role: next((name for name in candidates(role) if name in ids), None) for role in NAMES}
    last = roles["eos"] or roles["sep"] or next((name for name in roles.values() if name), tokens[max(tokens)])
    return {role: name or last for role, name in roles.items()}


def _named(folder: Path) -> dict[str, str]:
    """The special tokens that the tokenizer's configs name, by keys such as "eos_token"."""
    named = dict[str, str]()
    for file in (folder / name for name in CONFIGS):
        for key, value in (read_json(file) if file.is_file() else {}).items():
            content = value.get("content") if isinstance(value, dict) else value
            if key.endswith("_token") and isinstance(content, str):
                named.setdefault(key, content)
    return named


def _first(value: Any) -> int:
    """An id of a config, which may be a list; -1 if there is none."""
    value = value[0] if isinstance(value, list) and value else value
    return value if isinstance(value, int) else -1
