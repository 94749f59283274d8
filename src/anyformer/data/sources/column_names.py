"""Which column holds what: the text, its target, its label; by the names of the columns, or by what is in them."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from anyformer.data.sources import csv
from anyformer.data.sources.columns import SLOTS, split_named
from anyformer.errors import DataError

Row = Mapping[str, Any]
LANGUAGES = {
    "ar", "bg", "ca", "cs", "da", "de", "el", "en", "es", "et", "fa", "fi", "fr", "he", "hi", "hr", "hu", "id", "it",
    "ja", "ko", "lt", "lv", "nl", "pl", "pt", "ro", "ru", "sv", "tr", "uk", "zh",
}  # fmt: skip
_PAIRS = (
    ("source", "target"), ("src", "tgt"), ("text", "target"), ("text", "summary"), ("document", "summary"),
    ("article", "highlights"), ("article", "summary"), ("description", "synopsis"), ("text", "translation"),
    ("question", "answer"), ("prompt", "completion"), ("prompt", "response"), ("instruction", "output"),
    ("instruction", "response"), ("input", "output"), ("query", "passage"), ("english", "german"),
    ("english", "french"), ("english", "spanish"),
)  # fmt: skip
_COMPARED = (
    ("premise", "hypothesis"), ("sentence1", "sentence2"), ("sentence_a", "sentence_b"), ("question1", "question2"),
    ("text1", "text2"), ("text_a", "text_b"), ("query", "passage"), ("query", "document"), ("question", "sentence"),
    ("question", "passage"), ("question", "answer"),
)  # fmt: skip
"""Pairs of texts to which a label belongs: entailment, paraphrases, duplicates, relevance."""
_TEXTS = (
    "text", "content", "document", "article", "body", "passage", "description", "sentence", "review", "message",
    "comment", "tokens", "words",
)  # fmt: skip
_LABELS = (
    "label", "labels", "class", "category", "sentiment", "topic", "stars", "rating", "score", "target", "section",
    "value", "number", "price",
)  # fmt: skip
_RELATIONS = ("label", "gold_label", "is_duplicate", "similarity", "relatedness_score", "entailment_label", "score")
"""Labels of compared texts."""
_TAGS, _CHOICES, _GROUPS = ("tags", "ner_tags", "pos_tags"), ("choices", "options", "endings"), ("group", "group_id")


def is_titled(rows: list[list[str]], options: Row) -> bool:
    if not rows or options.get("header") in ("yes", "no"):
        return options.get("header") != "no"
    if any(not re.fullmatch(r"#?\d+", str(options[slot])) for slot in _named(options)):
        return True
    # a column of numbers below a word is a column with a title
    columns = zip(rows[0], zip(*rows[1:], strict=False), strict=False)
    titled = any(not _is_number(title) and all(map(_is_number, cells)) for title, cells in columns)
    return titled or csv.looks_like_header(rows[0])


def _is_number(cell: str) -> bool:
    return bool(re.fullmatch(r"-?\d+([.,]\d+)?", cell.strip()))


def without_conflicts(guessed: Mapping[str, str], options: Row) -> dict[str, str]:
    """The guessed columns that agree with the options: no column twice, and a target or a label, not both."""
    named = _named(options)
    taken = [options[slot] for slot in named]
    excluded = "target" if {"label", "tags", "choices"} & named else "label" if "target" in named else ""
    left_out = {excluded} | {slot for slot in SLOTS if slot in options} - named
    guessed = {slot: name for slot, name in guessed.items() if slot not in left_out}
    return {slot: name for slot, name in guessed.items() if slot in named or name not in taken}


def _named(options: Row) -> set[str]:
    """Slots for which the user names a column; null means that there is none."""
    return {slot for slot in SLOTS if options.get(slot) is not None}


def named_columns(rows: list[Any], options: Row) -> dict[str, str]:
    """Slot of a record -> field, by the names that fields usually have."""
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        return {}
    names = {str(name).lower(): str(name) for name in rows[0]}
    three = {"instruction", "input", "output"} <= names.keys() and not {"text", "target"} & options.keys()
    if three and any(row.get(names["input"]) for row in rows):
        raise DataError(
            "there are the fields instruction, input and output, but a source text is one field. Join the first two, "
            "or leave one out: data.source.text=instruction data.source.target=output"
        )
    compared = _labelled_pair(names, options)
    slots = compared or without_conflicts(dict(_text_and_target(rows[0], names)), options)
    usual = {"tags": _TAGS, "choices": _CHOICES, "group": _GROUPS}
    usual |= {} if "target" in slots else {"label": _LABELS}
    usual |= {} if "text" in slots else {"text": _TEXTS}
    for slot, known in usual.items():
        if column := next((names[name] for name in known if name in names), ""):
            slots[slot] = column
    if "text" not in slots:
        slots["text"] = _longest(rows)
    if "split" in names and all(split_named(row.get(names["split"])) for row in rows):
        slots["split"] = names["split"]
    slots = {slot: name for slot, name in slots.items() if name}
    return slots if compared else without_conflicts(slots, options)


def _labelled_pair(names: Mapping[str, str], options: Row) -> dict[str, str]:
    """Text, target and label of two texts that are compared; empty if there are none or the user names others."""
    pair = next(((names[one], names[two]) for one, two in _COMPARED if one in names and two in names), None)
    label = options.get("label", next((names[name] for name in _RELATIONS if name in names), None))
    if pair is None or label is None or label in pair or {"text", "target", "tags", "choices"} & options.keys():
        return {}
    return {"text": pair[0], "target": pair[1], "label": str(label)}


def _text_and_target(row: Row, names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    tables = [(name, value) for name, value in row.items() if name == "translation" and isinstance(value, Mapping)]
    for name, value in tables:  # {"translation": {"en": ..., "de": ...}}
        names = {language: f"{name}.{language}" for language in value}
    languages = sorted((name for name in names if name in LANGUAGES), key=lambda name: name != "en")
    two = ((languages[0], languages[1]),) if len(languages) == 2 else ()
    for source, target in (*_PAIRS, *two):
        if source in names and target in names:
            slots = {"text": names[source], "target": names[target]}
            values = [] if tables else [row[name] for name in slots.values()]
            if all(isinstance(value, str) and not _is_number(value) for value in values):
                yield from slots.items()
                return


def _longest(rows: list[Row]) -> str:
    sizes = Counter[str]()
    for row in rows:
        sizes.update({name: len(value) for name, value in row.items() if isinstance(value, str)})
    return max(sizes, key=lambda name: sizes[name], default="")


def numbered_columns(rows: list[list[str]]) -> dict[str, str]:
    """Slot of a record -> `#number`, by the content of the columns: splits, sentences, classes."""
    columns = {f"#{number}": cells for number, cells in enumerate(zip(*rows, strict=False), 1)}
    split = next((name for name, cells in columns.items() if all(map(split_named, cells))), "")
    rest = {name: cells for name, cells in columns.items() if name != split}
    sizes = {name: sum(map(len, cells)) for name, cells in rest.items() if not all(map(_is_number, cells))}
    texts = sorted(sizes, key=lambda name: -sizes[name])[:2] or list(rest)[:1]
    few = {name for name, cells in rest.items() if len(set(cells)) <= max(1, len(cells) // 2)}
    if len(texts) == 2 and (texts[1] in few or sizes[texts[0]] > 4 * sizes[texts[1]]):
        texts = texts[:1]
    slots = dict(zip(("text", "target"), sorted(texts, key=list(columns).index), strict=False))
    named = next((name for name in rest if name in few and name not in texts), "")
    slots |= {"group" if len(texts) == 2 else "label": named, "split": split}
    return {slot: name for slot, name in slots.items() if name}
