"""Writes the files of a Hugging Face folder: config, weights, tokenizer, special tokens, generation settings."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from anyformer.data.tokenizers.tokenizer import Tokenizer
from anyformer.data.tokenizers.vocabulary import NAMES, Vocabulary
from anyformer.disk import CHAT_TEMPLATE
from anyformer.errors import SpecError
from anyformer.interop.counterpart import Counterpart
from anyformer.interop.reading import CONFIG, WEIGHTS
from anyformer.interop.tokens import FILE

GENERATION, TOKENIZER_CONFIG, SPECIAL = "generation_config.json", "tokenizer_config.json", "special_tokens_map.json"
TEXT = -1
"""Stands for a text among the ids of its special tokens."""


@dataclass(frozen=True)
class TextSettings:
    """How texts become rows of tokens, and how the model answers."""

    tokenizer: Tokenizer
    row: Sequence[int]
    """Ids of the special tokens around a text, with -1 in its place."""
    max_len: int
    classes: Sequence[str] = ()
    generation: Mapping[str, Any] = field(default_factory=dict)
    """Settings of `generate`; empty for a model that does not generate."""
    chat_template: str | None = None


def write_model(
    folder: Path,
    model: Counterpart,
    ours: Mapping[str, Tensor],
    text: TextSettings | None = None,
    ids: Mapping[str, int | None] | None = None,
) -> None:
    """Writes config.json and model.safetensors; the weights keep the precision of ours. `ids`: the special tokens of a
    model without a tokenizer, by the names of the config."""
    tensors = model.tensors(ours)
    config = {**model.config, "dtype": str(next(iter(tensors.values())).dtype).removeprefix("torch.")}
    write_json(folder / CONFIG, {**config, **_ids(model, text, ids or {})})
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    shutil.copymode(folder / CONFIG, folder / WEIGHTS)  # safetensors creates files readable by the owner only


def write_text(folder: Path, text: TextSettings, types: bool) -> None:
    """Writes the tokenizer with its settings; `types`: the model reads token types."""
    words = text.tokenizer.words
    text.tokenizer.save(folder / FILE)
    config = json.loads((folder / FILE).read_text(encoding="utf-8"))
    tokens = {token["id"]: token["content"] for token in config["added_tokens"]}
    config["post_processor"] = _row_template(text, tokens)
    if words.mask not in {getattr(words, role) for role in NAMES if role != "mask"}:
        # the space before a gap belongs to the word that fills it
        config["added_tokens"] = [{**each, "lstrip": each["id"] == words.mask} for each in config["added_tokens"]]
    write_json(folder / FILE, config)
    names = {f"{role}_token": tokens[getattr(words, role)] for role in NAMES}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": text.max_len,
        "model_input_names": ["input_ids", *(["token_type_ids"] if types else []), "attention_mask"],
        # a decoder goes on behind the last token, so padding stands before the first
        "padding_side": "left" if text.generation and "decoder_start_token_id" not in text.generation else "right",
    }
    write_json(folder / TOKENIZER_CONFIG, {**settings, **names})
    write_json(folder / SPECIAL, names)
    if text.chat_template is not None:
        (folder / CHAT_TEMPLATE).write_text(text.chat_template, encoding="utf-8")
    if text.generation:
        write_json(folder / GENERATION, dict(text.generation))


def write_json(file: Path, value: Any) -> None:
    """Writes a value as indented JSON."""
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _ids(model: Counterpart, text: TextSettings | None, ids: Mapping[str, int | None]) -> dict[str, Any]:
    """The special tokens and class names of a config."""
    needs_source = model.spec.needs_source
    forced = {"forced_bos_token_id": None, "forced_eos_token_id": None} if needs_source else {}
    if text is None:
        fixed = model.config.get("pad_token_id", 0)  # the ids that a class has by default may exceed the vocabulary
        start = {"decoder_start_token_id": fixed} if needs_source else {}
        return {"bos_token_id": fixed, "eos_token_id": fixed, "pad_token_id": fixed, **start, **forced, **ids}
    words = text.tokenizer.words
    if model.config.get("pad_token_id", words.pad) != words.pad:
        raise SpecError(
            f"{model.family.model_types[0]} counts positions from a padding token with the id "
            f"{model.config['pad_token_id']}, and that of this tokenizer is {words.pad}: the positions would differ."
        )
    labels = {str(index): name for index, name in enumerate(text.classes)}
    names = {"id2label": labels, "label2id": {name: int(index) for index, name in labels.items()}}
    has_names = "id2label" in model.config and len(labels) == len(model.config["id2label"])
    return {**special_ids(words, needs_source), **forced, **(names if has_names else {})}


def special_ids(words: Vocabulary, needs_source: bool) -> dict[str, int]:
    """The special tokens of a config and of its generation settings; an encoder-decoder starts a target with <bos>."""
    ids = {"bos_token_id": words.bos, "eos_token_id": words.eos, "pad_token_id": words.pad}
    return {**ids, "decoder_start_token_id": words.bos} if needs_source else ids


def _row_template(text: TextSettings, tokens: Mapping[int, str]) -> dict[str, Any]:
    """A post-processor that puts the special tokens of training around a text, or around two."""

    def pieces(row: Sequence[int], name: str, kind: int) -> list[dict[str, Any]]:
        texts = {TEXT: {"Sequence": {"id": name, "type_id": kind}}}
        return [texts.get(index) or {"SpecialToken": {"id": tokens[index], "type_id": kind}} for index in row]

    place = list(text.row).index(TEXT)
    before, behind = list(text.row[: place + 1]), list(text.row[place + 1 :])
    between = [text.tokenizer.words.sep] if behind else []
    special = {*text.row, *between} - {TEXT}
    return {
        "type": "TemplateProcessing",
        "single": pieces(text.row, "A", 0),
        "pair": [*pieces([*before, *between], "A", 0), *pieces([TEXT, *behind], "B", 1)],
        "special_tokens": {
            tokens[index]: {"id": tokens[index], "ids": [index], "tokens": [tokens[index]]} for index in special
        },
    }
