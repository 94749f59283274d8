"""What a bare path means: a path that a user gives, to the source that reads it.

The ending says what kind of file it is; the first rows say which column is what.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from anyformer.core import decode
from anyformer.data.columns import split_named
from anyformer.data.reading import existing, files_in, head, lines, looks_like_text, readable
from anyformer.data.record import SourceSpec
from anyformer.data.sources import csv, jsonl, parquet
from anyformer.data.sources.folder import Folder
from anyformer.data.sources.gettext import Gettext
from anyformer.data.sources.hub import Hub
from anyformer.data.sources.pairs import Pairs
from anyformer.data.sources.text import Text
from anyformer.errors import DataError

HUB = "hf://"
SAMPLE = 64
PIECES = (512, 16_384)  # characters: a short text in small pieces, so that some can be kept for validation
Row = Mapping[str, Any]
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
    "label",
    "labels",
    "class",
    "category",
    "sentiment",
    "topic",
    "stars",
    "rating",
    "score",
    "target",
    "section",
)
_TAGS, _CHOICES, _GROUPS = ("tags", "ner_tags", "pos_tags"), ("choices", "options", "endings"), ("group", "group_id")


def guess(path: str) -> SourceSpec:
    """The source that reads this file, folder, two files with a comma between them, or hf://owner/name."""
    if path.startswith(HUB):
        name, _, revision = path.removeprefix(HUB).partition("@")
        return Hub(name=name, revision=revision or None)
    source, comma, target = path.partition(",")
    if comma and not Path(path).exists():
        return Pairs(path=str(existing(source)), target_path=str(existing(target)))
    found = existing(path)
    return _folder(path, found) if found.is_dir() else _reader(found.name)(path, readable(found))


def _reader(name: str) -> Callable[[str, Path], SourceSpec]:
    return _READERS.get(_ending(name), _text)


def _ending(name: str) -> str:
    return Path(re.sub(r"\.(gz|zst)$", "", name.lower())).suffix


def _folder(path: str, folder: Path) -> SourceSpec:
    files = files_in(folder, "*")
    kinds = Counter(_reader(name) for name in files)
    kind = max(kinds, key=lambda kind: (kinds[kind], kind is not _text))  # of as many, rather what has columns
    if kind is _text:
        return Folder(path=path, pattern=_text_pattern(files))
    return kind(path, next(file for name, file in files.items() if _reader(name) is kind))


def _text_pattern(files: Mapping[str, Path]) -> str:
    """Every file, if they are all text; else those with the commonest ending that is."""
    endings = Counter(Path(name).suffix for name in files)
    samples = {Path(name).suffix: file for name, file in files.items()}
    readable_endings = [ending for ending, _ in endings.most_common() if looks_like_text(samples[ending])]
    return "*" if len(readable_endings) in (0, len(endings)) else f"*{readable_endings[0]}"


def _text(path: str, file: Path) -> SourceSpec:
    if other := _translation(file):
        return Pairs(path=path, target_path=str(other))
    least, most = PIECES
    return Text(path=path, piece=max(least, min(most, file.stat().st_size // 20)))


def _translation(file: Path) -> Path | None:
    """The other half of talks.en, if there is just one such file beside it: talks.de."""
    found = re.fullmatch(r"(.+)\.(\w\w)(\.gz|\.zst)?", file.name)
    if not found or found[2] not in _LANGUAGES:
        return None
    names = (f"{found[1]}.{language}{found[3] or ''}" for language in sorted(_LANGUAGES - {found[2]}))
    beside = [other for name in names if (other := file.with_name(name)).is_file()]
    return beside[0] if len(beside) == 1 else None


def _gettext(path: str, file: Path) -> SourceSpec:
    return Gettext(path=path)


def _jsonl(path: str, file: Path) -> SourceSpec:
    if head(file).lstrip().startswith(b"["):
        raise DataError(f"{file}: is one JSON list.{jsonl.LINES}")
    found = (jsonl.parse(line, f"{file}:{number}") for number, line in lines(file) if line.strip())
    return decode(jsonl.JSONLines, {"path": path, **_named(list(islice(found, SAMPLE)))})


def _parquet(path: str, file: Path) -> SourceSpec:
    return decode(parquet.Parquet, {"path": path, **_named(list(islice(parquet.rows(file, {}), SAMPLE)))})


def _csv(path: str, file: Path) -> SourceSpec:
    usual = "\t" if ".tsv" in file.suffixes else ","
    delimiter = usual if usual == "\t" else _delimiter(file)
    rows = [cells for _, cells in islice(csv.rows(file, delimiter, "" if delimiter == "\t" else '"'), SAMPLE)]
    options = {"path": path} | ({} if delimiter == usual else {"delimiter": delimiter})
    if not rows or csv.looks_like_header(rows[0]) or _has_titles(rows[0], rows[1:]):
        titled = [dict(zip(rows[0], cells, strict=False)) for cells in rows[1:]]
        return decode(csv.CSV, {**options, "header": "yes", **_named(titled)})
    columns = _numbered(rows)
    if delimiter == "\t" and len(rows[0]) == 2 and "target" in columns and file == existing(path):
        return Pairs(path=path)
    return decode(csv.CSV, {**options, "header": "no", **columns})


def _delimiter(file: Path) -> str:
    _, line = next(lines(file), (1, ""))
    return max(",;\t", key=line.count)


def _has_titles(first: list[str], rest: list[list[str]]) -> bool:
    """A column of numbers under a word is a column with a title."""
    columns = list(zip(*rest, strict=False))
    return any(
        not _is_number(title) and all(map(_is_number, cells)) for title, cells in zip(first, columns, strict=False)
    )


def _is_number(cell: str) -> bool:
    return bool(re.fullmatch(r"-?\d+([.,]\d+)?", cell.strip()))


def _named(rows: list[Any]) -> dict[str, str]:
    """Slot of a record -> field, by the names that fields usually have."""
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        return {}
    names = {str(name).lower(): str(name) for name in rows[0]}
    found = dict(_text_and_target(rows[0], names))
    if "text" not in found:
        found["text"] = _pick(names, _TEXTS) or _longest(rows)
    slots = {"tags": _TAGS, "choices": _CHOICES, "group": _GROUPS} | ({} if "target" in found else {"label": _LABELS})
    found |= {slot: name for slot, known in slots.items() if (name := _pick(names, known))}
    if "split" in names and all(split_named(row.get(names["split"])) for row in rows):
        found["split"] = names["split"]
    return {slot: name for slot, name in found.items() if name}


def _text_and_target(row: Row, names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    tables = [(name, value) for name, value in row.items() if name == "translation" and isinstance(value, Mapping)]
    for name, value in tables:  # {"translation": {"en": ..., "de": ...}}
        names = {language: f"{name}.{language}" for language in value}
    languages = sorted((name for name in names if name in _LANGUAGES), key=lambda name: name != "en")
    two = ((languages[0], languages[1]),) if len(languages) == 2 else ()
    for source, target in (*_PAIRS, *two):
        if source in names and target in names and (tables or _are_texts(row, names[source], names[target])):
            yield "text", names[source]
            yield "target", names[target]
            return


def _are_texts(row: Row, *names: str) -> bool:
    return all(isinstance(row[name], str) and not _is_number(row[name]) for name in names)


def _pick(names: Mapping[str, str], known: tuple[str, ...]) -> str:
    return next((names[name] for name in known if name in names), "")


def _longest(rows: list[Row]) -> str:
    sizes = Counter[str]()
    for row in rows:
        sizes.update({name: len(value) for name, value in row.items() if isinstance(value, str)})
    return max(sizes, key=lambda name: sizes[name], default="")


def _numbered(rows: list[list[str]]) -> dict[str, str]:
    """Slot of a record -> `#number`, by what stands in the columns: splits, sentences, classes."""
    columns = {f"#{number}": cells for number, cells in enumerate(zip(*rows, strict=False), 1)}
    split = next((name for name, cells in columns.items() if all(map(split_named, cells))), "")
    rest = {name: cells for name, cells in columns.items() if name != split}
    sizes = {name: sum(map(len, cells)) for name, cells in rest.items() if not all(map(_is_number, cells))}
    texts = sorted(sizes, key=lambda name: -sizes[name])[:2] or list(rest)[:1]
    few = {name for name, cells in rest.items() if len(set(cells)) <= max(1, len(cells) // 2)}
    if len(texts) == 2 and (texts[1] in few or sizes[texts[0]] > 4 * sizes[texts[1]]):
        texts = texts[:1]
    found = dict(zip(("text", "target"), sorted(texts, key=list(columns).index), strict=False))
    named = next((name for name in rest if name in few and name not in texts), "")
    found |= {"group" if len(texts) == 2 else "label": named, "split": split}
    return {slot: name for slot, name in found.items() if name}


_READERS: dict[str, Callable[[str, Path], SourceSpec]] = {
    ".jsonl": _jsonl, ".ndjson": _jsonl, ".json": _jsonl, ".csv": _csv, ".tsv": _csv,
    ".po": _gettext, ".mo": _gettext, ".parquet": _parquet,
}  # fmt: skip
