"""A folder of text files, one document each. Files or folders called train, valid, test are those splits."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from anyformer.core import Count
from anyformer.data.record import Record
from anyformer.data.sources.columns import split_named, splits_by_name
from anyformer.data.sources.files import (
    Documents,
    FileSource,
    check_encoding,
    documents,
    existing,
    files_in,
    guarded,
    kept,
)
from anyformer.data.sources.unread_files import unread_files
from anyformer.errors import DataError, SpecError

FEWEST_FILES, MOST_CLASSES = 5, 100
"""Files in each of so many folders that may be the labels of their files."""


@dataclass(frozen=True, kw_only=True)
class Folder(FileSource, kind="folder"):
    """A folder of text files, at any depth."""

    path: str
    """The folder."""
    pattern: str = "*"
    """Which files: `*.txt`, `chapter-*`, `notes/*.md`, or several: `*.txt,*.md`. Hidden files are left out."""
    documents: Documents = "file"
    """What is one document: each file, each line, or each paragraph between blank lines."""
    labels: Literal["folder"] | None = None
    """`folder`: the name of the folder that a file lies in is its label."""
    piece: Count = 16_384
    """With documents="file": characters in a record at most; the records of a file are one group."""
    encoding: str = "utf-8"
    """How the bytes are to be read: utf-8, latin-1, utf-16, ..."""

    @classmethod
    def examples(cls) -> "tuple[Folder, ...]":
        return (cls(path="books", pattern="*.txt"),)

    def check(self) -> None:
        check_encoding(self.encoding)
        for pattern in self.pattern.split(","):
            if not pattern or pattern.startswith("/") or ".." in pattern.split("/"):
                raise SpecError(f"pattern: {pattern!r} must name files inside the folder, for example *.txt.")

    def records(self) -> Iterator[Record]:
        files = self.files()
        splits = splits_by_name(files)

        def read(name: str, file: Path) -> Iterator[Record]:
            label = file.parent.name if self.labels else None
            texts = documents(file, self.documents, self.piece, self.encoding, self.on_error)
            for place, (number, text) in enumerate(texts):
                yield Record(
                    text=text,
                    label=label,
                    group=name if len(files) > 1 else None,  # pieces of the only file may be held out
                    split=splits.get(name),
                    continues=self.documents == "file" and place > 0,
                    where=f"{file}:{number}",
                )

        records = (record for name, file in files.items() for record in guarded(read(name, file)))
        return kept(records, lambda record: record, self, self.on_error)

    def files(self) -> dict[str, Path]:
        path = existing(self.path)
        if not path.is_dir():
            raise DataError(f"{path}: is a file, not a folder. Use data.source.kind=text to read one file.")
        return files_in(path, *self.pattern.split(","))

    def warnings(self) -> list[str]:
        hint = "data.source.pattern names the files to read, for example *.txt,*.md"
        return [
            *(f"{text} {hint}." for text in unread_files(existing(self.path), self.files())),
            *self._unread_labels(),
        ]

    def _unread_labels(self) -> list[str]:
        """A warning if all files lie in a few folders that may be their labels, as in reviews/positive/1.txt."""
        folders = Counter(Path(name).parent.name for name in self.files())
        classes = sorted(name for name in folders if name and not split_named(name))
        rare = min(folders.values(), default=0) < FEWEST_FILES
        if self.labels or rare or len(classes) < len(folders) or not 2 <= len(classes) <= MOST_CLASSES:
            return []
        named = ", ".join(map(repr, classes[:3])) + (", ..." if len(classes) > 3 else "")
        return [
            f"{self.path}: the texts are read without labels. Their {len(classes)} folders are {named}; "
            f"if these are the labels: data.source.labels=folder"
        ]
