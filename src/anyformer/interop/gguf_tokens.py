"""The tokenizer of a GGUF file, as the tokenizer.json and the tokenizer_config.json that it was made from."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from anyformer.errors import CheckpointError
from anyformer.interop.gguf_header import Header

FIELDS = "tokenizer.ggml."
TEMPLATE = "tokenizer.chat_template"
ROLES = {
    "bos_token_id": "bos_token",
    "eos_token_id": "eos_token",
    "unknown_token_id": "unk_token",
    "padding_token_id": "pad_token",
    "seperator_token_id": "sep_token",  # as llama.cpp spells it
    "cls_token_id": "cls_token",
    "mask_token_id": "mask_token",
}
"""Field -> key of tokenizer_config.json."""
FLAGS = ("add_bos_token", "add_eos_token")
USED = ("model", "pre", "tokens", "token_type", "merges")
HARMLESS = (
    "add_sep_token", "add_space_prefix", "eog_token_ids", "eom_token_id", "eot_token_id", "fim_mid_token_id",
    "fim_pad_token_id", "fim_pre_token_id", "fim_rep_token_id", "fim_sep_token_id", "fim_suf_token_id",
    "middle_token_id", "prefix_token_id", "scores", "suffix_token_id",
)  # fmt: skip
"""Fields that take no part in reading text with a byte-level BPE; texts get no special tokens here."""
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*"
_WORDS += r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def _words(digits: str) -> list[Mapping[str, Any]]:
    """Cuts as Llama 3 and Qwen2 do, into numbers of so many digits."""
    pattern = {"Regex": _WORDS.replace("DIGITS", digits)}
    split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    return [split, {**_BYTES, "use_regex": False}]


CUTS: Mapping[str, list[Mapping[str, Any]]] = {
    "gpt-2": [_BYTES],
    "smollm": [{"type": "Digits", "individual_digits": True}, _BYTES],
    "llama-bpe": _words("{1,3}"),
    "qwen2": _words(""),
}
"""`tokenizer.ggml.pre` -> how texts are cut into words."""
NORMALIZERS = {"qwen2": {"type": "NFC"}}
WHOLE_WORDS = ("llama-bpe",)
"""Pre-tokenizers whose models look a word up before they merge its bytes."""


def tokenizer_files(header: Header) -> tuple[str, dict[str, Any]]:
    """The text of a tokenizer.json, and a tokenizer_config with the special tokens and the chat template."""
    path = header.path
    fields = {name.removeprefix(FIELDS): one for name, one in header.fields.items() if name.startswith("tokenizer.")}
    template = fields.pop(TEMPLATE, None)
    if problems := [*_refusals(fields), *_wrong(fields)]:
        raise CheckpointError("\n".join(f"{path}: {problem}" for problem in problems))
    tokens: list[str] = fields["tokens"]
    config: dict[str, Any] = {name: fields[name] for name in FLAGS if name in fields}
    config |= {key: tokens[fields[name]] for name, key in ROLES.items() if 0 <= fields.get(name, -1) < len(tokens)}
    if template is not None:
        config["chat_template"] = template
    return json.dumps(_tokenizer_json(fields, tokens)), config


def _tokenizer_json(fields: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, Any]:
    cuts = CUTS[fields["pre"]]
    model = {
        "type": "BPE",
        "ignore_merges": fields["pre"] in WHOLE_WORDS,
        "vocab": {token: index for index, token in enumerate(tokens)},
        "merges": [merge.split(" ", 1) for merge in fields["merges"]],
    }
    return {
        "version": "1.0",
        "added_tokens": [*_added(tokens, fields["token_type"])],
        "normalizer": NORMALIZERS.get(fields["pre"]),
        "pre_tokenizer": cuts[0] if len(cuts) == 1 else {"type": "Sequence", "pretokenizers": cuts},
        "decoder": _BYTES,
        "model": model,
    }


def _added(tokens: Sequence[str], types: Sequence[int]) -> Iterator[dict[str, Any]]:
    """The tokens that no text is merged to."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    for index, (token, kind) in enumerate(zip(tokens, types, strict=True)):
        if kind in (UNKNOWN, CONTROL, USER_DEFINED):
            yield {"id": index, "content": token, **flags, "special": kind != USER_DEFINED}


def _refusals(fields: Mapping[str, Any]) -> Iterator[str]:
    known = {*USED, *ROLES, *FLAGS, *HARMLESS}
    for name in fields:
        if name not in known:
            full = name if name.startswith("tokenizer.") else f"{FIELDS}{name}"
            yield f"{full}: is not a known field of a tokenizer, so it may change how texts are read."


def _wrong(fields: Mapping[str, Any]) -> Iterator[str]:
    """The fields that are missing, of a wrong type, or contradict each other."""
    if missing := [name for name in USED if name not in fields]:
        yield from (f"{FIELDS}{name}: is missing." for name in missing)
        return
    if fields["model"] != "gpt2":
        yield f"{FIELDS}model: must be 'gpt2' (byte-level BPE), got {str(fields['model'])[:40]!r}."
    if fields["pre"] not in CUTS:
        yield f"{FIELDS}pre: {str(fields['pre'])[:40]!r} is not a known pre-tokenizer. Known: {', '.join(CUTS)}."
    for name in ("tokens", "merges"):
        if not isinstance(fields[name], list) or not all(isinstance(one, str) for one in fields[name]):
            yield f"{FIELDS}{name}: should be a list of texts."
            return
    if any(" " not in merge for merge in fields["merges"]):
        yield f"{FIELDS}merges: each should be two tokens with a space between them."
    tokens, types = fields["tokens"], fields["token_type"]
    if not isinstance(types, list) or len(types) != len(tokens):
        yield f"{FIELDS}token_type: should be a list of {len(tokens):,} numbers, one for each token."
    if repeated := [token for token, count in Counter(tokens).items() if count > 1]:
        yield f"{FIELDS}tokens: {repeated[0][:40]!r} occurs more than once."
    for name in ROLES:
        if name in fields and not isinstance(fields[name], int):
            yield f"{FIELDS}{name}: should be the id of a token."
