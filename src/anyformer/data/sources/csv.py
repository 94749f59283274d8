"""Tables in text: comma, semicolon or tab between the cells, columns by name or by number."""

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from anyformer.data.record import Record, SourceSpec
from anyformer.data.sources.columns import SLOTS, chosen, make, missing, split_named, splits_by_name
from anyformer.data.sources.files import LONGEST, OnError, check_encoding, existing, files_in, fingerprint, kept, lines
from anyformer.errors import DataError, SpecError

PATTERNS = ("*.csv", "*.csv.gz", "*.csv.zst", "*.tsv", "*.tsv.gz", "*.tsv.zst")
Row = tuple[int, list[str]]
_TITLES = {*SLOTS, "source", "src", "tgt", "id", "name", "title", "sentence", "class", "category", "review", "document"}
_TITLES |= {"question", "answer", "summary", "score", "english", "german", "french", "en", "de", "fr", "es", "it"}


@dataclass(frozen=True, kw_only=True)
class CSV(SourceSpec, kind="csv"):
    """A table (.csv, .tsv; .gz and .zst too): columns by name, or by number from 1 (`#1`)."""

    path: str
    """The file; or a folder of them, in which train.csv, valid.csv, test.csv are those splits."""
    text: str = "text"
    """The column of the document, or of the source of a pair: its name, or `#1` for the first."""
    target: str | None = None
    """The column of the other half of a pair: the translation, the summary, the answer."""
    label: str | None = None
    """The column of a class or a number."""
    tags: str | None = None
    """The column of labels for each word, with spaces between them."""
    group: str | None = None
    """The column of a name: records of one group never cross a split."""
    split: str | None = None
    """The column that says train, valid or test."""
    header: Literal["auto", "yes", "no"] = "auto"
    """Whether the first row names the columns; auto: if columns are asked for by name, or it looks so."""
    delimiter: str | None = None
    """What stands between cells; without it a tab for .tsv, else a comma."""
    quote: str | None = None
    """What stands around a cell that holds a delimiter; without it nothing for tabs, else `"`. Empty: nothing."""
    encoding: str = "utf-8"
    """How the bytes are to be read: utf-8, latin-1, utf-16, ..."""
    on_error: OnError = "stop"
    """What to do at a bad row: stop, or skip it (which stops past 1%)."""

    @classmethod
    def examples(cls) -> "tuple[CSV, ...]":
        return (cls(path="reviews.csv", label="stars"), cls(path="en-de.tsv.gz", text="#1", target="#2"))

    def check(self) -> None:
        check_encoding(self.encoding)
        for name, sign in (("delimiter", self.delimiter), ("quote", self.quote or None)):
            if sign is not None and (len(sign) != 1 or sign in "\r\n"):
                raise SpecError(f"{name}: must be one character, got {sign!r}.")
        if self.header == "no" and (named := [name for name in chosen(self).values() if _number(name) is None]):
            raise SpecError(f"header=no: without names, {named[0]!r} cannot be found. Write #1 for the first column.")

    def records(self) -> Iterator[Record]:
        files = self.files()
        splits = {} if self.split else splits_by_name(files)
        for name, file in files.items():
            for record in self._records(file):
                yield replace(record, split=splits[name]) if name in splits else record

    def fingerprint(self) -> str:
        return fingerprint(self, self.files())

    def files(self) -> dict[str, Path]:
        return files_in(existing(self.path), *PATTERNS)

    def _records(self, file: Path) -> Iterator[Record]:
        following = self._rows(file)
        number, first = next(following, (1, []))
        titled = self._has_header(first)
        names = chosen(self)
        places = {slot: _place(name, slot, first, titled, f"{file}:{number}") for slot, name in names.items()}

        def read(item: Row) -> Record:
            number, cells = item
            if len(cells) != len(first):
                raise DataError(f"{file}:{number}: {len(cells)} columns where the first row has {len(first)}.")
            return make({slot: cells[place] for slot, place in places.items()}, names, f"{file}:{number}")

        return kept(following if titled else _after(first, number, following), read, self, self.on_error)

    def _rows(self, file: Path) -> Iterator[Row]:
        delimiter = self.delimiter or ("\t" if ".tsv" in file.suffixes else ",")
        quote = self.quote if self.quote is not None else "" if delimiter == "\t" else '"'
        return rows(file, lines(file, self.encoding, self.on_error), delimiter, quote)

    def _has_header(self, first: list[str]) -> bool:
        if self.header != "auto":
            return self.header == "yes"
        return any(_number(name) is None for name in chosen(self).values()) or looks_like_header(first)


def rows(file: Path, text: Iterable[tuple[int, str]], delimiter: str, quote: str) -> Iterator[Row]:
    """(number of its first line, cells) of every row that is not blank, from the numbered lines of a file."""
    ended = (f"{line}\n" for _, line in text)
    if quote:
        reader = csv.reader(ended, delimiter=delimiter, quotechar=quote, strict=True)
    else:
        reader = csv.reader(ended, delimiter=delimiter, quoting=csv.QUOTE_NONE, strict=True)
    number = 1
    try:
        while (cells := _next(reader)) is not None:
            if cells:
                yield number, cells
            number = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{file}:{number}: {error}. If quotes are letters here: data.source.quote=''") from None


def _next(reader: Iterator[list[str]]) -> list[str] | None:
    """The next row. The limit of a cell belongs to the whole process, and its default is shorter than a document."""
    limit = csv.field_size_limit(LONGEST)
    try:
        return next(reader, None)
    finally:
        csv.field_size_limit(limit)


def looks_like_header(first: list[str]) -> bool:
    """Whether cells are titles rather than values: all different, and one is a name that columns bear."""
    names = [cell.strip().lower() for cell in first]
    plain = all(names) and len(set(names)) == len(names) and not any(map(split_named, names))
    return plain and any(name in _TITLES for name in names)


def _after(first: list[str], number: int, following: Iterator[Row]) -> Iterator[Row]:
    if first:
        yield number, first
    yield from following


def _number(name: str) -> int | None:
    digits = name.removeprefix("#")
    return int(digits) if digits.isascii() and digits.isdigit() else None


def _place(name: str, slot: str, first: list[str], titled: bool, where: str) -> int:
    if titled and name in first:
        return first.index(name)
    number = _number(name)
    if number is None:
        raise missing(name, first, slot, where, "column")
    if not 1 <= number <= len(first):
        raise DataError(f"{where}: no column {number}: there are {len(first)}, counted from 1.")
    return number - 1
