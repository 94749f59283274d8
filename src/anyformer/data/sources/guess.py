"""Guesses the source that reads a path of the user: the ending decides the format, the first rows the columns."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from anyformer.core import decode
from anyformer.data.record import SourceSpec
from anyformer.data.sources import csv, jsonl, parquet
from anyformer.data.sources.columns import SLOTS, split_named
from anyformer.data.sources.files import OnError, check_encoding, existing, files_in, lines, looks_like_text, readable
from anyformer.data.sources.folder import Folder
from anyformer.data.sources.gettext import Gettext
from anyformer.data.sources.hub import Hub
from anyformer.data.sources.pairs import Pairs
from anyformer.data.sources.text import Text
from anyformer.errors import DataError

HUB = "hf://"
Row = Mapping[str, Any]
Reader = Callable[[str, Path, Row], SourceSpec]
_LANGUAGES = {
    "ar", "bg", "ca", "cs", "da", "de", "el", "en", "es", "et", "fa", "fi", "fr", "he", "hi", "hr", "hu", "id", "it",
    "ja", "ko", "lt", "lv", "nl", "pl", "pt", "ro", "ru", "sv", "tr", "uk", "zh",
}  # fmt: skip
_PAIRS = (
    ("source", "target"), ("src", "tgt"), ("text", "target"), ("text", "summary"), ("document", "summary"),
    ("article", "highlights"), ("article", "summary"), ("description", "synopsis"), ("text", "translation"),
    ("question", "answer"), ("prompt", "completion"), ("prompt", "response"), ("input", "output"),
    ("instruction", "output"), ("instruction", "response"), ("query", "passage"), ("english", "german"),
    ("english", "french"), ("english", "spanish"),
)  # fmt: skip
_TEXTS = (
    "text", "content", "document", "article", "body", "passage", "description", "sentence", "review", "message",
    "comment", "tokens", "words",
)  # fmt: skip
_LABELS = (
    "label", "labels", "class", "category", "sentiment", "topic", "stars", "rating", "score", "target", "section",
    "value", "number", "price",
)  # fmt: skip
_TAGS, _CHOICES, _GROUPS = ("tags", "ner_tags", "pos_tags"), ("choices", "options", "endings"), ("group", "group_id")


def guess(path: str, options: Row = MappingProxyType({})) -> SourceSpec:
    """The source that reads this file, folder, two files with a comma between them, or hf://owner/name.

    `options`: settings of the user, such as the encoding, and columns that need not be guessed.
    """
    if path.startswith(HUB):
        name, _, revision = path.removeprefix(HUB).partition("@")
        return Hub(name=name, revision=revision or None)
    source, comma, target = path.partition(",")
    if comma and not Path(path).exists():
        return Pairs(path=str(existing(source)), target_path=str(existing(target)))
    file = existing(path)
    return _folder(path, file, options) if file.is_dir() else _reader(file.name)(path, readable(file), options)


def _reader(name: str) -> Reader:
    return _READERS.get(Path(re.sub(r"\.(gz|zst)$", "", name.lower())).suffix, _text)


def _how(options: Row) -> tuple[str, OnError]:
    """The encoding, and what to do at bad lines."""
    encoding = options.get("encoding", "utf-8")
    check_encoding(str(encoding))
    return str(encoding), "skip" if options.get("on_error") == "skip" else "stop"


def _folder(path: str, folder: Path, options: Row) -> SourceSpec:
    files = files_in(folder, "*")
    kinds = Counter(_reader(name) for name in files)
    kind = max(kinds, key=lambda kind: (kinds[kind], kind is not _text))  # of equally many, the one with columns
    if kind is not _text:
        return kind(path, next(file for name, file in files.items() if _reader(name) is kind), options)
    encoding, _ = _how(options)
    samples = {Path(name).suffix: file for name, file in files.items()}
    texts = sorted(
        end for end, file in samples.items() if _reader(file.name) is _text and looks_like_text(file, encoding)
    )
    if len(texts) in (0, len(samples)):
        return Folder(path=path)
    return Folder(path=path, pattern=",".join(f"*{ending}" for ending in texts if ending) or "*")


def _text(path: str, file: Path, options: Row) -> SourceSpec:
    match = re.fullmatch(r"(.+)\.(\w\w)(\.gz|\.zst)?", file.name)
    if match and match[2] in _LANGUAGES:  # talks.en is one half of a pair if there is just one other, such as talks.de
        names = (f"{match[1]}.{language}{match[3] or ''}" for language in sorted(_LANGUAGES - {match[2]}))
        others = [other for name in names if (other := file.with_name(name)).is_file()]
        if len(others) == 1:
            return Pairs(path=path, target_path=str(others[0]))
    return Text(path=path)


def _gettext(path: str, file: Path, options: Row) -> SourceSpec:
    return Gettext(path=path)


def _jsonl(path: str, file: Path, options: Row) -> SourceSpec:
    rows: list[Any] = []
    encoding, on_error = _how(options)
    for number, line in islice(filter(lambda item: item[1].strip(), lines(file, encoding, on_error)), csv.SAMPLE):
        if not rows and line.lstrip().startswith("["):
            raise DataError(f"{file}: is one JSON list.{jsonl.as_lines(str(file))}")
        try:
            rows.append(jsonl.parse(line, f"{file}:{number}"))
        except DataError:
            if on_error == "stop":
                raise
    return decode(jsonl.JSONLines, {"path": path, **_named(rows, options)})


def _parquet(path: str, file: Path, options: Row) -> SourceSpec:
    return decode(parquet.Parquet, {"path": path, **_named(list(islice(parquet.rows(file, {}), csv.SAMPLE)), options)})


def _csv(path: str, file: Path, options: Row) -> SourceSpec:
    encoding, on_error = _how(options)
    usual = "\t" if ".tsv" in file.suffixes else ","
    text = lines(file, encoding, on_error)
    first = next(text, (1, ""))
    delimiter = str(options.get("delimiter") or (usual if usual == "\t" else max(",;\t", key=first[1].count)))
    quote = str(options.get("quote", "" if delimiter == "\t" else '"'))
    rows = [cells for _, cells in islice(csv.rows(file, chain((first,), text), delimiter, quote), csv.SAMPLE)]
    read = {"path": path} | ({} if delimiter == usual else {"delimiter": delimiter})
    if _is_titled(rows, options):
        titled = [dict(zip(rows[0], cells, strict=False)) for cells in rows[1:]]
        return decode(csv.CSV, {**read, "header": "yes", **_named(titled, options)})
    columns = _apart(_numbered(rows), options)
    alone = not any(slot in options for slot in SLOTS) and "header" not in options
    plain = alone and file == existing(path) and not csv.probably_header(rows)
    if delimiter == "\t" and len(rows[0]) == 2 and "target" in columns and plain:
        return Pairs(path=path)
    return decode(csv.CSV, {**read, **columns})


def _is_titled(rows: list[list[str]], options: Row) -> bool:
    if not rows or options.get("header") in ("yes", "no"):
        return options.get("header") != "no"
    if any(not re.fullmatch(r"#?\d+", str(options[slot])) for slot in SLOTS if slot in options):
        return True
    # a column of numbers below a word is a column with a title
    columns = zip(rows[0], zip(*rows[1:], strict=False), strict=False)
    titled = any(not _is_number(title) and all(map(_is_number, cells)) for title, cells in columns)
    return titled or csv.looks_like_header(rows[0])


def _is_number(cell: str) -> bool:
    return bool(re.fullmatch(r"-?\d+([.,]\d+)?", cell.strip()))


def _apart(guessed: Mapping[str, str], options: Row) -> dict[str, str]:
    """The guessed columns that agree with the options: no column twice, and a target or a label, not both."""
    taken = [options[slot] for slot in SLOTS if slot in options]
    labelled = {"label", "tags", "choices"} & options.keys()
    excluded = "target" if labelled else "label" if "target" in options else ""
    return {slot: name for slot, name in guessed.items() if slot in options or (name not in taken and slot != excluded)}


def _named(rows: list[Any], options: Row) -> dict[str, str]:
    """Slot of a record -> field, by the names that fields usually have."""
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        return {}
    names = {str(name).lower(): str(name) for name in rows[0]}
    slots = _apart(dict(_text_and_target(rows[0], names)), options)
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
    return _apart({slot: name for slot, name in slots.items() if name}, options)


def _text_and_target(row: Row, names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    tables = [(name, value) for name, value in row.items() if name == "translation" and isinstance(value, Mapping)]
    for name, value in tables:  # {"translation": {"en": ..., "de": ...}}
        names = {language: f"{name}.{language}" for language in value}
    languages = sorted((name for name in names if name in _LANGUAGES), key=lambda name: name != "en")
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


def _numbered(rows: list[list[str]]) -> dict[str, str]:
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


_READERS: dict[str, Reader] = {
    ".jsonl": _jsonl, ".ndjson": _jsonl, ".json": _jsonl, ".csv": _csv, ".tsv": _csv,
    ".po": _gettext, ".mo": _gettext, ".parquet": _parquet,
}  # fmt: skip
