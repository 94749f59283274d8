"""Tables in text: comma, semicolon, tab or | between the cells, columns by name or by number."""

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from shlex import quote
from statistics import median
from typing import Any, Literal

from anyformer.core.readable_numbers import counted
from anyformer.data.record import Record
from anyformer.data.sources.columns import SAMPLE, SLOTS, ColumnSource, chosen, make, missing, split_named
from anyformer.data.sources.files import LONGEST, check_encoding, lines
from anyformer.errors import DataError, SpecError

Row = tuple[int, list[str]]
_TITLES = {*SLOTS, "source", "src", "tgt", "id", "name", "title", "sentence", "class", "category", "review", "document"}
_TITLES |= {"question", "answer", "summary", "score", "english", "german", "french", "en", "de", "fr", "es", "it"}


@dataclass(frozen=True, kw_only=True)
class CSV(ColumnSource, kind="csv"):
    """A table (.csv, .tsv; .gz and .zst too): columns by name, or by number from 1 (`#1`)."""

    patterns = ("*.csv", "*.csv.gz", "*.csv.zst", "*.tsv", "*.tsv.gz", "*.tsv.zst")

    header: Literal["auto", "yes", "no"] = "auto"
    """Whether the first row has the names of the columns; auto: if a column is given by name, or the row looks so."""
    delimiter: str | None = None
    """The character between cells; by default a tab for .tsv, else a comma."""
    quote: str | None = None
    """The character around a cell that holds a delimiter; by default none for tabs, else `"`. Empty: none."""
    encoding: str = "utf-8"
    """How the bytes are to be read: utf-8, latin-1, utf-16, ..."""

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

    def rows(self, file: Path) -> Iterator[Callable[[], Record]]:
        cells_of_rows = self._cells(file)
        start, first = next(cells_of_rows, (1, []))
        names, titled = chosen(self), self._titled(first)
        places = {slot: _place(name, slot, first, titled, f"{file}:{start}") for slot, name in names.items()}

        def read(number: int, cells: list[str]) -> Record:
            if len(cells) != len(first):
                raise DataError(
                    f"{file}:{number}: {counted(len(cells), 'columns')} where the first row has {len(first)}."
                )
            return make({slot: cells[place] for slot, place in places.items()}, names, f"{file}:{number}")

        if first and not titled:
            yield partial(read, start, first)
        yield from (partial(read, number, cells) for number, cells in cells_of_rows)

    def tables(self, file: Path) -> Iterator[Mapping[str, Any]]:
        rows = (cells for _, cells in self._cells(file))
        first = next(rows, [])
        names = first if self._titled(first) else [f"#{number}" for number, _ in enumerate(first, 1)]
        return (dict(zip(names, cells, strict=False)) for cells in (rows if names is first else chain([first], rows)))

    def _titled(self, first: list[str]) -> bool:
        """Whether the first row has the names of the columns."""
        named = any(_number(name) is None for name in chosen(self).values())
        return self.header == "yes" or (self.header == "auto" and (named or looks_like_header(first)))

    def warnings(self) -> list[str]:
        file = next(iter(self.files().values()))
        sample = [cells for _, cells in islice(self._cells(file), SAMPLE)]
        numbers = {slot: _number(name) for slot, name in chosen(self).items()}
        if self.header != "auto" or None in numbers.values() or not probably_header(sample):
            return super().warnings()
        named = {slot: sample[0][number - 1] for slot, number in numbers.items() if number}
        titles = [quote(f"data.source.{slot}={title}") for slot, title in named.items()]
        text = f"{file}:1: the first row ({', '.join(sample[0])}) is probably a header, but is read as a record."
        return [f"{text} If it is one: data.source.header=yes {' '.join(titles)}", *super().warnings()]

    def _cells(self, file: Path) -> Iterator[Row]:
        delimiter = self.delimiter or ("\t" if ".tsv" in file.suffixes else ",")
        quote = self.quote if self.quote is not None else "" if delimiter == "\t" else '"'
        return rows(file, lines(file, self.encoding, self.on_error), delimiter, quote)


def rows(file: Path, text: Iterable[tuple[int, str]], delimiter: str, quote: str) -> Iterator[Row]:
    """(number of its first line, cells) of every row that is not blank, from the numbered lines of a file."""
    ended = (f"{line}\n" for _, line in text)
    if quote:
        reader = csv.reader(ended, delimiter=delimiter, quotechar=quote, strict=True)
    else:
        reader = csv.reader(ended, delimiter=delimiter, quoting=csv.QUOTE_NONE, strict=True)
    number = 1
    cells: list[str] | None = []
    while cells is not None:
        limit = csv.field_size_limit(LONGEST)  # of the whole process; the default is shorter than a document
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise DataError(f"{file}:{number}: {error}. If quotes are letters here: data.source.quote=''") from None
        finally:
            csv.field_size_limit(limit)
        if cells:
            yield number, cells
        number = reader.line_num + 1


def looks_like_header(first: list[str]) -> bool:
    """Whether cells are titles rather than values: all different, and one is a usual name of a column."""
    names = [cell.strip().lower() for cell in first]
    plain = all(names) and len(set(names)) == len(names) and not any(map(split_named, names))
    return plain and any(name in _TITLES for name in names)


def probably_header(rows: list[list[str]]) -> bool:
    """Whether the first row has titles, though not usual ones: short names that no cell below repeats, above columns of
    few values or of far longer cells."""
    if len(rows) <= 5 or len(set(map(len, rows))) > 1 or looks_like_header(rows[0]):
        return False

    def is_title(title: str, cells: Sequence[str]) -> bool:
        name = re.fullmatch(r"[^\W\d][\w-]*( [\w-]+)?", title.strip())
        few = len(set(cells)) <= len(cells) // 2
        return bool(name) and title not in cells and (few or median(map(len, cells)) >= 2 * len(title))

    return all(is_title(title, cells) for title, cells in zip(rows[0], zip(*rows[1:], strict=True), strict=True))


def _number(name: str) -> int | None:
    digits = name.removeprefix("#")
    return int(digits) if digits.isascii() and digits.isdigit() else None


def _place(name: str, slot: str, first: list[str], titled: bool, where: str) -> int:
    titles = first if name in first else [title.strip() for title in first]  # the command line drops spaces around it
    if titled and name in titles:
        return titles.index(name)
    number = _number(name)
    if number is None:
        raise missing(name, first, slot, where, "column")
    if not 1 <= number <= len(first):
        raise DataError(f"{where}: no column {number}: there are {len(first)}, counted from 1.")
    return number - 1
