"""JSON lines, one object a line, or one JSON list of objects; plain, gzip or zstd."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from anyformer.data.record import Record
from anyformer.data.sources.columns import ColumnSource, chosen, record_of
from anyformer.data.sources.files import OnError, check_encoding, lines
from anyformer.errors import DataError


@dataclass(frozen=True, kw_only=True)
class JSONLines(ColumnSource, kind="jsonl"):
    """JSON lines (.jsonl, .jsonl.gz, .jsonl.zst), one object a line, or one JSON list of objects: fields by name."""

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

        def read(where: str, parse_item: Callable[[], Any]) -> Record:
            return record_of(parse_item(), names, where)

        for where, parse_item in objects(file, self.encoding, self.on_error):
            yield partial(read, where, parse_item)

    def tables(self, file: Path) -> Iterator[Mapping[str, Any]]:
        rows = (parse_item() for _, parse_item in objects(file, self.encoding, self.on_error))
        return (row for row in rows if isinstance(row, Mapping))


def objects(file: Path, encoding: str, on_error: OnError) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The place and a function that parses it: of each line, or of each item if the file is one JSON list."""
    numbered = lines(file, encoding, on_error)
    begin, first = next((item for item in numbered if item[1].strip()), (1, ""))
    if first.lstrip().startswith("["):
        items = parse("\n".join([first, *(line for _, line in numbered)]), file, begin)
        yield from ((f"{file}:item {place}", partial(lambda value: value, item)) for place, item in enumerate(items, 1))
        return
    for number, line in chain([(begin, first)], numbered):
        if line.strip():
            yield f"{file}:{number}", partial(parse, line, file, number)


def parse(text: str, file: Path, number: int) -> Any:
    """The value of a JSON text that begins at this line of the file."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where, what = f"{file}:{number + error.lineno - 1}", error.msg.removesuffix(" at")
        alone = " Write one object a line, or one list of objects." if text.strip() == "{" else ""
        raise DataError(f"{where}: not JSON: {what} at column {error.colno}.{alone}") from None
    except (RecursionError, ValueError) as error:  # nested too deep, or a number of too many digits
        raise DataError(f"{file}:{number}: cannot be read as JSON: {error}.") from None
