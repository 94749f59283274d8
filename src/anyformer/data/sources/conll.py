"""Tagged words in columns: one word a line, a blank line between sentences.

CoNLL-2002 and 2003, IOB and similar files have the word first and the tag last, with spaces or tabs between them.
CoNLL-U has ten columns, comments, and lines for contracted and omitted words, which are left out. Spaces in a word
become underscores.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from anyformer.core import Count
from anyformer.core.readable_numbers import counted
from anyformer.data.record import Record
from anyformer.data.sources.columns import splits_by_name
from anyformer.data.sources.files import (
    SNIFF,
    FileSource,
    check_encoding,
    existing,
    files_in,
    guarded,
    head,
    kept,
    lines,
)
from anyformer.data.sources.unread_files import unread_files
from anyformer.errors import DataError

ENDINGS = (".conll", ".conllu", ".iob", ".iob2", ".bio")
UNIVERSAL = 10
"""Columns of CoNLL-U: the number of the word, the word, its lemma, its part of speech, ..."""
MOST_COLUMNS = 5
_CHUNK_TAG = re.compile(r"O|[BILUSE]-\S+")
_DOCUMENT = "-DOCSTART-"


@dataclass(frozen=True, kw_only=True)
class Conll(FileSource, kind="conll"):
    """Words and their tags in columns, one word a line and a blank line between sentences (CoNLL, IOB, CoNLL-U)."""

    path: str
    """The file; or a folder of them, in which files named train, valid and test are those splits."""
    word: Count | None = None
    """Number of the column of words, counted from 1; if not given: 1, and 2 in CoNLL-U."""
    tag: Count | None = None
    """Number of the column of tags, counted from 1; if not given: the last one, and 4 (part of speech) in CoNLL-U."""
    encoding: str = "utf-8"
    """How the bytes are to be read: utf-8, latin-1, utf-16, ..."""

    @classmethod
    def examples(cls) -> "tuple[Conll, ...]":
        return (cls(path="names.conll"), cls(path="treebank.conllu", tag=5))

    def check(self) -> None:
        check_encoding(self.encoding)

    def records(self) -> Iterator[Record]:
        files = self.files()
        splits = splits_by_name(files)
        pairs = ((name, one) for name, file in files.items() for one in guarded(self._sentences(file)))

        def read(pair: "tuple[str, Sentence | DataError]") -> Record:
            name, sentence = pair
            if isinstance(sentence, DataError):
                raise sentence
            return replace(self._record(sentence), split=splits.get(name))

        return kept(pairs, read, self, self.on_error)

    def files(self) -> dict[str, Path]:
        path = existing(self.path)
        patterns = [f"*{ending}{packed}" for ending in ENDINGS for packed in ("", ".gz", ".zst")]
        if path.is_dir() and not any(True for pattern in patterns for _ in path.rglob(pattern)):
            patterns = ["*.txt"]
        return files_in(path, *patterns)

    def warnings(self) -> list[str]:
        return unread_files(existing(self.path), self.files())

    def _sentences(self, file: Path) -> "Iterator[Sentence]":
        rows, columns = list[tuple[int, list[str]]](), 0
        for number, line in lines(file, self.encoding, self.on_error):
            cells = line.split("\t") if "\t" in line else line.split()
            if not line.strip():
                if rows:
                    yield Sentence(file, rows, columns)
                rows = []
            elif not (line.startswith("#") and len(cells) != columns) and not _is_left_out(cells):
                columns = columns or len(cells)
                rows.append((number, cells))
        if rows:
            yield Sentence(file, rows, columns)

    def _record(self, sentence: "Sentence") -> Record:
        universal = sentence.columns == UNIVERSAL
        word = self.word or (2 if universal else 1)
        tag = self.tag or (4 if universal else sentence.columns)
        least = max(sentence.columns if self.tag is None else 0, word, tag, 2)
        for number, cells in sentence.rows:
            if len(cells) < least or (self.tag is None and len(cells) > least):
                raise DataError(
                    f"{sentence.file}:{number}: has {counted(len(cells), 'columns')}, expected {least}: a word, and "
                    f"its tag in column {max(tag, 2)} (data.source.word, data.source.tag)."
                )
        words, tags = (
            ["_".join(cells[column - 1].split()) or "_" for _, cells in sentence.rows] for column in (word, tag)
        )
        return Record(text=" ".join(words), tags=tuple(tags), where=f"{sentence.file}:{sentence.rows[0][0]}")


class Sentence(NamedTuple):
    """The lines of a sentence."""

    file: Path
    rows: list[tuple[int, list[str]]]
    """Number of each line, and its cells."""
    columns: int
    """Columns of the first word of the file."""


def _is_left_out(cells: list[str]) -> bool:
    """True for the line that begins a document, and for lines of CoNLL-U that repeat words (3-4) or add some (5.1)."""
    contracted = len(cells) == UNIVERSAL and re.fullmatch(r"\d+[-.]\d+", cells[0])
    return cells[0] == _DOCUMENT or bool(contracted)


def looks_tagged(file: Path, encoding: str) -> bool:
    """True if the lines at the beginning are words in columns, with IOB tags in the last one."""
    start = head(file)
    beginning = start.decode(encoding, "ignore").split("\n")
    complete = beginning[:-1] if len(start) == SNIFF else beginning
    rows = [cells for cells in map(str.split, complete) if cells]
    columns, tags = {len(cells) for cells in rows}, {cells[-1] for cells in rows}
    alike = len(columns) == 1 and 2 <= max(columns) <= MOST_COLUMNS
    return alike and all(map(_CHUNK_TAG.fullmatch, tags)) and tags != {"O"}
