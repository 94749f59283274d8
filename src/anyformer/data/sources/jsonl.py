"""JSON lines: one object a line, plain, gzip or zstd."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anyformer.data.record import Record, SourceSpec
from anyformer.data.sources.columns import chosen, record_of, splits_by_name
from anyformer.data.sources.files import OnError, check_encoding, existing, files_in, fingerprint, kept, lines
from anyformer.errors import DataError

PATTERNS = ("*.jsonl", "*.jsonl.gz", "*.jsonl.zst", "*.ndjson")


@dataclass(frozen=True, kw_only=True)
class JSONLines(SourceSpec, kind="jsonl"):
    """JSON lines (.jsonl, .jsonl.gz, .jsonl.zst): one object a line, fields by name."""

    path: str
    """The file; or a folder of them, in which train.jsonl, valid.jsonl, test.jsonl are those splits."""
    text: str = "text"
    """The field of the document, or of the source of a pair; `a.b` is field b inside field a."""
    target: str | None = None
    """The field of the other half of a pair: the translation, the summary, the answer."""
    label: str | None = None
    """The field of a class or a number."""
    tags: str | None = None
    """The field of a list of labels, one for each word."""
    choices: str | None = None
    """The field of a list of answers; the label is the index of the right one."""
    group: str | None = None
    """The field of a name: records of one group never cross a split."""
    split: str | None = None
    """The field that says train, valid or test."""
    encoding: str = "utf-8"
    """How the bytes are to be read: utf-8, latin-1, utf-16, ..."""
    on_error: OnError = "stop"
    """What to do at a bad line: stop, or skip it (which stops past 1%)."""

    @classmethod
    def examples(cls) -> "tuple[JSONLines, ...]":
        return (cls(path="news.jsonl"), cls(path="news.jsonl.gz", text="article.body", label="topic"))

    def check(self) -> None:
        check_encoding(self.encoding)

    def records(self) -> Iterator[Record]:
        names, files = chosen(self), self.files()
        splits = {} if self.split else splits_by_name(files)

        def read(item: tuple[str, str, str]) -> Record:
            name, where, line = item
            record = record_of(parse(line, where), names, where)
            return replace(record, split=splits[name]) if name in splits else record

        items = (
            (name, f"{file}:{number}", line)
            for name, file in files.items()
            for number, line in lines(file, self.encoding, self.on_error)
            if line.strip()
        )
        return kept(items, read, self, self.on_error)

    def fingerprint(self) -> str:
        return fingerprint(self, self.files())

    def files(self) -> dict[str, Path]:
        return files_in(existing(self.path), *PATTERNS)


def parse(line: str, where: str) -> Any:
    """One line of JSON."""
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        advice = as_lines(where) if line.strip() in ("[", "{") else ""
        raise DataError(
            f"{where}: not JSON: {error.msg.removesuffix(' at')} at column {error.colno}.{advice}"
        ) from None
    except (RecursionError, ValueError) as error:  # nested too deep, or a number of too many digits
        raise DataError(f"{where}: cannot be read as JSON: {error}.") from None
    if isinstance(value, list):
        raise DataError(f"{where}: a JSON list.{as_lines(where)}")
    return value


def as_lines(where: str) -> str:
    """How to turn a file that is one JSON value into lines; `where`: the file, or file:line."""
    file = re.sub(r":\d+$", "", where)
    return f" Each line must be one object: jq -c '.[]' {file} > {Path(file).with_suffix('.lines.jsonl')}"
