"""JSON lines: one object a line, plain, gzip or zstd."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from anyformer.data.record import Record
from anyformer.data.sources.columns import ColumnSource, chosen, record_of
from anyformer.data.sources.files import check_encoding, lines
from anyformer.errors import DataError


@dataclass(frozen=True, kw_only=True)
class JSONLines(ColumnSource, kind="jsonl"):
    """JSON lines (.jsonl, .jsonl.gz, .jsonl.zst): one object a line, fields by name."""

    patterns = ("*.jsonl", "*.jsonl.gz", "*.jsonl.zst", "*.ndjson")

    choices: str | None = None
    """The field of a list of answers; the label is the index of the right one."""
    encoding: str = "utf-8"
    """How the bytes are to be read: utf-8, latin-1, utf-16, ..."""

    @classmethod
    def examples(cls) -> "tuple[JSONLines, ...]":
        return (cls(path="news.jsonl"), cls(path="news.jsonl.gz", text="article.body", label="topic"))

    def check(self) -> None:
        check_encoding(self.encoding)

    def rows(self, file: Path) -> Iterator[Callable[[], Record]]:
        names = chosen(self)

        def read(where: str, line: str) -> Record:
            return record_of(parse(line, where), names, where)

        for number, line in lines(file, self.encoding, self.on_error):
            if line.strip():
                yield partial(read, f"{file}:{number}", line)


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
