"""The tokenizer of a foreign model, with the special tokens that its configs name for each role."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tokenizers import Tokenizer as Library

from anyformer.core import ModelSpec
from anyformer.data.tokenizers.tokenizer import Tokenizer
from anyformer.data.tokenizers.vocabulary import NAMES, with_roles
from anyformer.disk import CHAT_TEMPLATE
from anyformer.errors import CheckpointError, DataError
from anyformer.interop.gguf_header import SUFFIX, Header
from anyformer.interop.gguf_tokens import tokenizer_files
from anyformer.interop.reading import read_json, refuse_large

FILE = "tokenizer.json"
CONFIGS = ("tokenizer_config.json", "special_tokens_map.json")
NOTHING: Mapping[str, Any] = MappingProxyType({})
_TEXT = "a text"
MOST_TEMPLATE_BYTES = 1 << 18
MOST_BYTES = 1 << 26
"""Largest tokenizer.json; one with a quarter of a million tokens has 33 MB."""


def read_tokenizer(source: Path, config: Mapping[str, Any], spec: ModelSpec) -> Tokenizer | None:
    """The tokenizer of a model in a folder or a GGUF file; None if it has none."""
    if not _is_gguf(source) and not (source / FILE).is_file():
        return None
    file, text, named = _read(source)
    ids = _ids(file, text, spec)
    try:
        roles = token_roles(ids, named, config, spec.needs_source)
        return Tokenizer(json.dumps(with_roles(json.loads(text), roles, ids)))
    except DataError as error:
        raise CheckpointError(f"{file}: {error}") from None


def roles_of(folder: Path, config: Mapping[str, Any], spec: ModelSpec) -> dict[str, str]:
    """Role -> its token, for a folder that has a tokenizer.json."""
    file, text, named = _read(folder)
    return token_roles(_ids(file, text, spec), named, config, spec.needs_source)


def read_tokenizer_config(source: Path, spec: ModelSpec) -> dict[str, Any]:
    """The special tokens of a model: those keys of tokenizer_config.json, or the same from the fields of a GGUF file.
    Of a decoder also `add_bos_token`: whether the tokenizer puts a token before a text."""
    facts = _facts(source)
    config = {key: value for key, value in facts.items() if key.endswith("_token")}
    if spec.output_stack.causal and not spec.needs_source and not _is_gguf(source):
        config.setdefault("add_bos_token", bool(read_ends(source)[0]))
    return config


def read_chat_template(source: Path) -> str | None:
    """The chat template of a folder or a GGUF file, which is not run here; None if it has none."""
    if (file := source / CHAT_TEMPLATE).is_file():
        refuse_large(file, MOST_TEMPLATE_BYTES)
        return file.read_text(encoding="utf-8", errors="replace")
    template = _facts(source).get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {each.get("name"): each.get("template") for each in template if isinstance(each, dict)}
        template = named.get("default")
    return template if isinstance(template, str) and template else None


def read_ends(folder: Path) -> tuple[list[int], list[int]]:
    """The ids that the tokenizer.json of a folder puts before a text and behind it."""
    library = Library.from_file(str(folder / FILE))
    library.no_truncation()
    library.no_padding()
    bare, full = (library.encode(_TEXT, add_special_tokens=special).ids for special in (False, True))
    before = next((at for at in range(len(full)) if full[at : at + len(bare)] == bare), None)
    if before is None:
        raise CheckpointError(f"{folder / FILE}: its post-processor changes the tokens of a text.")
    return full[:before], full[before + len(bare) :]


def _is_gguf(source: Path) -> bool:
    return source.suffix == SUFFIX and source.is_file()


def _facts(source: Path) -> Mapping[str, Any]:
    """tokenizer_config.json, or the same keys from the fields of a GGUF file."""
    if _is_gguf(source):
        return tokenizer_files(Header.read(source))[1]
    file = source / CONFIGS[0]
    return read_json(file) if file.is_file() else {}


def _read(source: Path) -> tuple[Path, str, Mapping[str, Any]]:
    """The file of a tokenizer, its text in the form of a tokenizer.json, and its special tokens by keys such as
    "eos_token"."""
    if _is_gguf(source):
        return source, *tokenizer_files(Header.read(source))
    file = source / FILE
    refuse_large(file, MOST_BYTES)
    try:
        return file, file.read_text(encoding="utf-8"), _named(source)
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{file}: is not a tokenizer.json ({error}).") from None


def _ids(file: Path, text: str, spec: ModelSpec) -> dict[str, int]:
    """The tokens of a tokenizer.json with their ids, which the model must have."""
    try:
        ids = Library.from_str(text).get_vocab()
    except Exception as error:  # the library raises nothing more precise
        raise CheckpointError(f"{file}: is not a tokenizer.json ({str(error)[:200]}).") from None
    rows = spec.input_stack.vocabulary
    if not ids or max(ids.values()) >= rows:
        raise CheckpointError(f"{file}: has the id {max(ids.values(), default=-1)}, the model {rows} ids from 0 on.")
    return ids


def token_roles(
    ids: Mapping[str, int], named: Mapping[str, Any], config: Mapping[str, Any] = NOTHING, pairs: bool = False
) -> dict[str, str]:
    """Role -> its token: as the configs name it, by its usual names, or else the token that ends a text. `named`: keys
    such as "eos_token" of a tokenizer's config; `config`: that of the model; `pairs`: of an encoder-decoder."""
    tokens = {index: name for name, index in ids.items()}

    def candidates(role: str) -> Iterator[str]:
        if role == "bos" and pairs:  # what a decoder starts with
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
