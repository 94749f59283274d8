"""Records from named columns: the common part of CSV files, JSON lines, Parquet files and hub datasets."""

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import Any, ClassVar
from warnings import warn

from anyformer.core import Spec
from anyformer.core.readable_numbers import counted, listed
from anyformer.data.record import Record
from anyformer.data.sources.files import FileSource, existing, files_in, kept
from anyformer.data.sources.unread_files import unread_files
from anyformer.errors import DataError

SLOTS = ("text", "target", "label", "tags", "choices", "group", "split")
SAMPLE = 64
"""Rows that are looked at to find out what the columns hold."""
_SPLITS = {"train": "train", "training": "train", "test": "test", "testing": "test"}
_SPLITS |= dict.fromkeys(("valid", "validation", "val", "dev", "eval"), "valid")


@dataclass(frozen=True, kw_only=True)
class ColumnSource(FileSource):
    """Files with named columns, or fields."""

    patterns: ClassVar[tuple[str, ...]]
    """Names of the files that are read from a folder."""

    path: str
    """The file; or a folder of them, in which files named train, valid and test (train.csv, ...) are those splits."""
    text: str = "text"
    """The column of the document, or of the source of a pair; `#1`: the first of a table, `a.b`: field b inside a."""
    target: str | None = None
    """The column of the other half of a pair: the translation, the summary, the answer."""
    label: str | None = None
    """The column of a class or a number."""
    unlabelled: str | None = None
    """Labels that mean that there is none, with commas between them (`NA,-`): rows with one of them, or with an empty
    label, are left out."""
    tags: str | None = None
    """The column of labels for each word: a list, or words with spaces between them."""
    group: str | None = None
    """The column of a name: records of one group never cross a split."""
    split: str | None = None
    """The column of the split: train, valid or test."""

    def rows(self, file: Path) -> Iterator[Callable[[], Record]]:
        """For each row a function that returns its record; DataError if the row is bad."""
        raise NotImplementedError

    def records(self) -> Iterator[Record]:
        files = self.files()
        splits = {} if self.split else splits_by_name(files)

        def read(item: tuple[str, Callable[[], Record]]) -> Record:
            name, row = item
            return replace(row(), split=splits[name]) if name in splits else row()

        rows = ((name, row) for name, file in files.items() for row in self.rows(file))
        records = kept(rows, read, self, self.on_error)
        return records if self.unlabelled is None else self._labelled(records, self.unlabelled.split(","))

    def _labelled(self, records: Iterable[Record], unlabelled: Iterable[str]) -> Iterator[Record]:
        marks, seen, left_out = {"", *(mark.strip() for mark in unlabelled)}, 0, 0
        for record in records:
            seen += 1
            if record.label is not None and record.label.strip() in marks:
                left_out += 1
            else:
                yield record
        if left_out:
            warn(f"{self.path}: left out {left_out:,} of {counted(seen, 'rows')} without a label.", stacklevel=1)

    def files(self) -> dict[str, Path]:
        return files_in(existing(self.path), *self.patterns)

    def tables(self, file: Path) -> Iterator[Mapping[str, Any]]:
        """Each row as a table of all its columns by name."""
        raise NotImplementedError

    def warnings(self) -> list[str]:
        return [*unread_files(existing(self.path), self.files()), *self._unread_labels()]

    def _unread_labels(self) -> list[str]:
        """A warning for each column that may be the label of texts which are read without one."""
        names = chosen(self)
        if not names.keys().isdisjoint(("target", "label", "tags", "choices")):
            return []
        file = next(iter(self.files().values()))
        with suppress(DataError):
            rows = list(islice(self.tables(file), SAMPLE))
            others = [name for name in (rows[0] if rows else ()) if name not in names.values()]
            values = {name: {row.get(name) for row in rows} for name in others if _are_scalars(rows, name)}
            return [
                f"{file}: only the column {names['text']!r} is read, as plain text. The column {name!r} has "
                f"{len(seen)} different values in {len(rows)} rows; if it is the label: "
                f"{quote(f'data.source.label={name}')}"
                for name, seen in values.items()
                if 2 <= len(seen) <= len(rows) // 4
            ]
        return []


def _are_scalars(rows: Iterable[Mapping[str, Any]], name: str) -> bool:
    return all(isinstance(row.get(name), str | int | float) and row[name] != "" for row in rows)


def chosen(source: Spec) -> dict[str, str]:
    """Slot of a record -> the name of the field that fills it, for the slots that a source was given."""
    options = source.to_dict()
    return {slot: options[slot] for slot in SLOTS if slot in options}


def record_of(row: Any, names: Mapping[str, str], where: str) -> Record:
    """A record from a table of values; `a.b` reaches into a table within the table."""
    if not isinstance(row, Mapping):
        hint = ' Write a text as {"text": "..."}.' if isinstance(row, str) else ""
        raise DataError(f"{where}: expected an object with named fields, got {_shown(row)}.{hint}")
    return make({slot: _reach(row, name, slot, where) for slot, name in names.items()}, names, where)


def make(values: Mapping[str, Any], names: Mapping[str, str], where: str) -> Record:
    """A record from the values of its slots, each checked for its type; `names` are what the user calls them."""
    values = {**values, "label": ""} if "label" in values and values["label"] is None else values
    read = {slot: _READERS[slot](value) for slot, value in values.items()}
    for slot, value in read.items():
        if value is None and (slot in ("text", "target", "label") or values[slot] is not None):
            expected = _WANTED.get(slot, "text")
            got = f"got {_shown(values[slot])}.{_other_field(values[slot], names[slot], slot)}"
            raise DataError(f"{where}: field {names[slot]!r} should hold {expected}, {got}")
    words = len(read["text"].split(" ")) if read.get("tags") is not None else 0
    if words and words != len(read["tags"]):
        raise DataError(f"{where}: {counted(words, 'words')} but {counted(len(read['tags']), 'tags')}.")
    return Record(**{slot: value for slot, value in read.items() if value is not None}, where=where)


def split_named(value: Any) -> str | None:
    """train, valid or test, for that word or another for the same; None for any other value."""
    return _SPLITS.get(value.strip().lower()) if isinstance(value, str) else None


def splits_by_name(files: Mapping[str, Path]) -> dict[str, str]:
    """Name -> split, where files or folders at the top are called train..., valid..., test...: two of them at least."""
    prefixes = {name: split_named(re.split(r"[./_-]", name)[0]) for name in files}
    splits = {name: split for name, split in prefixes.items() if split}
    return splits if len(set(splits.values())) > 1 and "train" in splits.values() else {}


def missing(name: str, known: list[str], slot: str, where: str, what: str = "field") -> DataError:
    """The error for a name that does not exist, with the names that do."""
    shown = listed([key[:40] for key in known], 12)
    near = (difflib.get_close_matches(name, known, 1) or known[:1] or ["NAME"])[0]
    option = quote(f"data.source.{slot}={near}")
    return DataError(f"{where}: no {what} {name!r}; there is {shown or 'none'}. Say which: {option}")


def _reach(row: Mapping[str, Any], name: str, slot: str, where: str) -> Any:
    if name in row:  # a dot may be part of the name
        return row[name]
    node: Any = row
    for key in name.split("."):
        if not isinstance(node, Mapping) or key not in node:
            raise missing(name, list(map(str, row)), slot, where)
        node = node[key]
    return node


def _text(value: Any) -> str | None:
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return " ".join(value)
    return value if isinstance(value, str) else None


def _scalar(value: Any) -> str | None:
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    return value if isinstance(value, str) else None


def _texts(value: Any) -> tuple[str, ...] | None:
    if isinstance(value, str):
        return tuple(value.split())
    scalars = [_scalar(item) for item in value] if isinstance(value, list) else [None]
    return tuple(item for item in scalars if item is not None) if None not in scalars else None


def _other_field(value: Any, name: str, slot: str) -> str:
    """What to write in place of a field that holds a table or a list."""
    if isinstance(value, Mapping):
        texts = [key for key, item in value.items() if isinstance(item, str)]
        inside = max(texts, key=lambda key: len(value[key]), default="FIELD")
        return f" Name a field inside it: data.source.{slot}={name}.{inside}"
    none = " (or null, to learn without labels)" if slot == "label" else ""
    return f" Name another field: data.source.{slot}=FIELD{none}" if isinstance(value, list) else ""


def _shown(value: Any) -> str:
    words = {dict: "a table", list: "a list", type(None): "nothing"}
    return words.get(type(value)) or repr(value)[:60]


_READERS: dict[str, Callable[[Any], Any]] = {
    "text": _text, "target": _text, "label": _scalar, "tags": _texts, "choices": _texts, "group": _scalar,
    "split": split_named,
}  # fmt: skip
_WANTED = {
    "label": "a class or a number", "tags": "a list of labels", "choices": "a list of texts",
    "group": "a name or a number", "split": "train, valid or test",
}  # fmt: skip
