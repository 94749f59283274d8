"""The source that a word on the command line names, a path to data or a built-in source, and what it holds.

For a path, the ending decides the format, and the first rows the columns.
"""

import re
import shlex
from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.core import Spec, decode
from anyformer.core.fields import did_you_mean
from anyformer.data.preparation.contents import Contents, ContentsCollector
from anyformer.data.preparation.pipeline import DataSpec
from anyformer.data.record import SourceSpec
from anyformer.data.sources import conll, csv, jsonl, parquet
from anyformer.data.sources.chat import CONVERSATIONS, MESSAGES, Chat
from anyformer.data.sources.column_names import (
    LANGUAGES,
    Row,
    is_titled,
    named_columns,
    numbered_columns,
    without_conflicts,
)
from anyformer.data.sources.columns import SAMPLE, SLOTS, split_named
from anyformer.data.sources.files import OnError, check_encoding, existing, files_in, lines, looks_like_text, readable
from anyformer.data.sources.folder import Folder
from anyformer.data.sources.gettext import Gettext
from anyformer.data.sources.hub import Hub
from anyformer.data.sources.mixture import MixtureSource
from anyformer.data.sources.pairs import Pairs
from anyformer.data.sources.text import Text
from anyformer.disk import RECIPE, STUDY, is_run
from anyformer.errors import DataError

HUB = "hf://"
NOTHING: Row = {}
Reader = Callable[[str, Path, Row], SourceSpec]
_PEEK = 200
"""Records by which the form of the data is known."""
MOST = 1 << 24
"""Characters that are counted at most: defaults do not depend on how much more there is."""


def source_of(target: str, options: Row = NOTHING) -> SourceSpec:
    """The source of a path or of a built-in name, with `options` of the user; a file of that name comes first."""
    if not target:
        raise DataError("the path of the data is empty. Name a file, a folder or a built-in source.")
    if Path(target).exists() or target.startswith(HUB):
        return guess(target, options)
    known = built_in()
    if target in known:
        return decode(SourceSpec, {"kind": target})
    try:
        return guess(target, options)
    except DataError as error:
        near = did_you_mean(target, known) if "/" not in target and "." not in target else ""
        raise DataError(f"{error}{near and f' Nor is it a built-in source.{near}'}") from None


def built_in() -> list[str]:
    """The sources that need no options."""
    SourceSpec.load_kinds()
    return [
        kind
        for kind, cls in SourceSpec.kinds.items()
        if all((field.default, field.default_factory) != (MISSING, MISSING) for field in fields(cls))
    ]


def is_data(target: str) -> bool:
    """True if a word on the command line names data: an existing path, a Hub data set or a built-in source."""
    return Path(target).exists() or target.startswith(HUB) or target in built_in()


def usual_tokenizer(kind: object) -> dict[str, Any]:
    """The default tokenizer of a kind of source."""
    SourceSpec.load_kinds()
    known = SourceSpec.kinds.get(str(kind), SourceSpec)
    assert issubclass(known, SourceSpec)
    return dict(known.usual_tokenizer)


def relocated(data: DataSpec, began_in: str | None) -> DataSpec:
    """The same data; a relative path that does not exist here is resolved in the folder where the run began."""
    if began_in is None:
        return data
    return replace(data, source=_moved(data.source, began_in), tokenizer=_moved(data.tokenizer, began_in))


def _moved(spec: Any, began_in: str) -> Any:
    assert isinstance(spec, Spec)
    moved: dict[str, Any] = {}
    if isinstance(spec, MixtureSource):
        moved["sources"] = tuple(_moved(source, began_in) for source in spec.sources)
    for name in {field.name for field in fields(spec)} & {"path", "target_path"}:
        if (path := getattr(spec, name)) is not None:
            moved[name] = relocated_path(path, began_in)
    return replace(spec, **moved)


def relocated_path(path: str, began_in: str) -> str:
    """The path; inside `began_in` if it exists there and not here."""
    there = Path(began_in) / path
    return str(there) if not Path(path).expanduser().exists() and there.exists() else path


def source_with(target: str | Path | SourceSpec, options: Row) -> SourceSpec:
    """A source, or that of a path or of a built-in name, with the options of the user laid over it."""
    source = target if isinstance(target, SourceSpec) else source_of(str(target), options)
    return decode(SourceSpec, {**source.to_dict(), **options}, "source")


def texts_with(target: str | Path, options: Row) -> SourceSpec:
    """The same without the columns of labels, unless the user names them: where only texts are needed, whatever these
    columns hold is no mistake."""
    source = source_with(target, options).to_dict()
    unread = {"label", "tags"} - options.keys()
    return decode(SourceSpec, {key: value for key, value in source.items() if key not in unread}, "source")


def guess(path: str, options: Row = NOTHING) -> SourceSpec:
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
    for name, what in ((STUDY, "a study"), (RECIPE, "a run" if is_run(folder) else "a recipe")):
        if (folder / name).is_file():
            recipe = shlex.quote(str(folder / name))
            raise DataError(f"{path}: is the folder of {what}, not of data. Name its recipe instead: {recipe}")
    if run := next((recipe.parent for recipe in folder.glob(f"*/{RECIPE}") if is_run(recipe.parent)), None):
        raise DataError(f"{path}: is a folder of runs, such as {run}, not of data. All of them: anyformer runs")
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
    if texts == [".txt"] and conll.looks_tagged(samples[".txt"], encoding):
        return conll.Conll(path=path)
    if len(texts) in (0, len(samples)):
        return Folder(path=path)
    return Folder(path=path, pattern=",".join(f"*{ending}" for ending in texts if ending) or "*")


def _text(path: str, file: Path, options: Row) -> SourceSpec:
    match = re.fullmatch(r"(.+)\.(\w\w)(\.gz|\.zst)?", file.name)
    if match and match[2] in LANGUAGES:  # talks.en is one half of a pair if there is just one other, such as talks.de
        names = (f"{match[1]}.{language}{match[3] or ''}" for language in sorted(LANGUAGES - {match[2]}))
        others = [other for name in names if (other := file.with_name(name)).is_file()]
        if len(others) == 1:
            return Pairs(path=path, target_path=str(others[0]))
    tagged = conll.looks_tagged(file, _how(options)[0])
    return conll.Conll(path=path) if tagged else Text(path=path)


def _jsonl(path: str, file: Path, options: Row) -> SourceSpec:
    rows: list[Any] = []
    encoding, on_error = _how(options)
    for _, parse in islice(jsonl.objects(file, encoding, on_error), SAMPLE):
        try:
            rows.append(parse())
        except DataError:
            if on_error == "stop":
                raise
    field = next((name for name in _message_fields(options) if rows and all(_has(row, name) for row in rows)), None)
    if field is not None:
        splits = "split" in rows[0] and all(split_named(row.get("split")) for row in rows)
        return Chat(path=path, messages=field, split="split" if splits else None)
    if len(rows) == 1 and isinstance(rows[0], Mapping) and not any(slot in options for slot in SLOTS):
        _refuse_list_inside(rows[0], path)
    return decode(jsonl.JSONLines, {"path": path, **named_columns(rows, options)})


def _refuse_list_inside(only: Row, path: str) -> None:
    """Raises DataError if the only object of a file holds the list of objects that is meant."""
    for name, value in only.items():
        if isinstance(value, list) and len(value) > 1 and all(isinstance(item, Mapping) for item in value):
            command = f"jq '.[\"{name}\"]' {shlex.quote(path)} > {shlex.quote(f'{name}.json')}"
            text = f"is one object, with a list of {len(value):,} objects in {name!r}"
            raise DataError(f"{path}: {text}. Save that list alone: {command}")


def _message_fields(options: Row) -> tuple[str, ...]:
    """The fields that may hold the messages of a conversation."""
    if "text" in options:
        return ()
    return (str(options["messages"]),) if "messages" in options else (MESSAGES, CONVERSATIONS)


def _has(row: Any, name: str) -> bool:
    return isinstance(row, Mapping) and name in row and (name != CONVERSATIONS or isinstance(row[name], list))


def _parquet(path: str, file: Path, options: Row) -> SourceSpec:
    rows = list(islice(parquet.rows(file, {}), SAMPLE))
    return decode(parquet.Parquet, {"path": path, **named_columns(rows, options)})


def _csv(path: str, file: Path, options: Row) -> SourceSpec:
    encoding, on_error = _how(options)
    usual = "\t" if ".tsv" in file.suffixes else ","
    text = lines(file, encoding, on_error)
    first = next(text, (1, ""))
    delimiter = str(options.get("delimiter") or (usual if usual == "\t" else max(",;\t|", key=first[1].count)))
    quote = str(options.get("quote", "" if delimiter == "\t" else '"'))
    rows = [cells for _, cells in islice(csv.rows(file, chain((first,), text), delimiter, quote), SAMPLE)]
    read = {"path": path} | ({} if delimiter == usual else {"delimiter": delimiter})
    if is_titled(rows, options):
        titled = [dict(zip(rows[0], cells, strict=False)) for cells in rows[1:]]
        return decode(csv.CSV, {**read, "header": "yes", **named_columns(titled, options)})
    columns = without_conflicts(numbered_columns(rows), options)
    alone = not any(slot in options for slot in SLOTS) and "header" not in options
    plain = alone and file == existing(path) and not csv.probably_header(rows)
    if delimiter == "\t" and len(rows[0]) == 2 and "target" in columns and plain:
        return Pairs(path=path)
    return decode(csv.CSV, {**read, **columns})


_READERS: dict[str, Reader] = {
    ".jsonl": _jsonl, ".ndjson": _jsonl, ".json": _jsonl, ".csv": _csv, ".tsv": _csv,
    ".parquet": _parquet, **dict.fromkeys((".po", ".mo"), lambda path, file, options: Gettext(path=path)),
    **dict.fromkeys(conll.ENDINGS, lambda path, file, options: conll.Conll(path=path)),
}  # fmt: skip


def peek(source: SourceSpec) -> Contents:
    """The contents by the first records; enough to choose a model and an objective."""
    if source.plain:
        return Contents()
    collector = ContentsCollector()
    for record in islice(source.records(), _PEEK):
        collector.see(record)
    if collector.first is None:
        raise DataError(f"the source {source.kind!r} has no records: is it empty?")
    return collector.close()


@dataclass(frozen=True)
class Extent:
    """The form and the amount of the records of a source."""

    contents: Contents
    records: int
    characters: int
    long: int
    """Characters of a record (the longer side of a pair) that 95% of the records do not exceed."""
    more: bool
    """True if the source has more than was counted."""


def measure(source: SourceSpec) -> Extent:
    """Counts the records of a source, up to `MOST` characters."""
    collector, lengths, characters = ContentsCollector(), array("q"), 0
    for record in source.records():
        if characters > MOST:
            break
        collector.see(record)
        lengths.append(record.characters() if record.pieces else max(len(record.text), len(record.target or "")))
        characters += record.characters()
    if not lengths:
        raise DataError(f"the source {source.kind!r} has no records: is it empty?")
    long = int(np.quantile(np.frombuffer(lengths, dtype=np.int64), 0.95))
    return Extent(collector.close(), len(lengths), characters, long, characters > MOST)


class ContentsReader:
    """The contents of a source by its first records, read once."""

    def __init__(self) -> None:
        self._source: SourceSpec | None = None
        self._contents = Contents()

    def __call__(self, source: SourceSpec) -> Contents:
        if self._source != source:
            self._source, self._contents = source, peek(source)
        return self._contents

    def extent(self, source: SourceSpec) -> Extent:
        """The contents and the amount, by all records."""
        extent = measure(source)
        self._source, self._contents = source, extent.contents
        return extent
