"""One text file: as a whole (in pieces), line by line, or by paragraphs."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from shlex import quote

from anyformer.core import Count
from anyformer.data.record import Record
from anyformer.data.sources.files import (
    Documents,
    FileSource,
    check_encoding,
    documents,
    existing,
    kept,
    lines,
    readable,
)

SAMPLE, FASTTEXT = 20, "__label__"
"""Lines that are looked at, and what a line of labelled text for fastText begins with."""


@dataclass(frozen=True, kw_only=True)
class Text(FileSource, kind="text"):
    """A plain text file (.txt, .md, ...; .gz and .zst too)."""

    plain = True

    path: str
    """The file."""
    documents: Documents = "file"
    """What is one document: the file, each line, or each paragraph between blank lines."""
    piece: Count | None = None
    """With documents="file": characters in a record at most, cut after a line, so that parts of the file can be held
    out. Default: a fiftieth of the file, but at least 512 and at most 16,384."""
    encoding: str = "utf-8"
    """How the bytes are to be read: utf-8, latin-1, utf-16, ..."""

    @classmethod
    def examples(cls) -> "tuple[Text, ...]":
        return (cls(path="book.txt"), cls(path="sentences.txt.gz", documents="line"))

    def check(self) -> None:
        check_encoding(self.encoding)

    def records(self) -> Iterator[Record]:
        path = existing(self.path)
        pieces = self.documents == "file"
        texts = documents(path, self.documents, self.piece, self.encoding, self.on_error)

        def read(item: tuple[int, tuple[int, str]]) -> Record:
            place, (number, text) = item
            return Record(text=text, continues=pieces and place > 0, where=f"{path}:{number}")

        return kept(enumerate(texts), read, self, self.on_error)

    def files(self) -> dict[str, Path]:
        return {"": readable(existing(self.path))}

    def warnings(self) -> list[str]:
        numbered = islice(lines(existing(self.path), self.encoding, self.on_error), SAMPLE)
        start = [line for _, line in numbered if line.strip()]
        if not start or not all(line.startswith(FASTTEXT) for line in start):
            return []
        command = rf"sed -E 's/^{FASTTEXT}([^ ]+) /\1\t/' {quote(self.path)} > labelled.tsv"
        return [
            f"{self.path}: each line begins with a label of fastText, and is read as plain text. A table: {command}"
        ]
