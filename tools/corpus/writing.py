"""Files that appear complete or not at all, and compressed records whose bytes depend only on their content."""

import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

LEVEL = 1
"""The fastest compression: higher levels would take most of the time of a build."""


@contextmanager
def atomic(path: Path) -> Iterator[IO[bytes]]:
    """A file under a temporary name, which is renamed when the block ends and removed when it fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".partial")
    try:
        with temporary.open("wb") as file:
            yield file
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def compressed(path: Path) -> Iterator[IO[bytes]]:
    """A gzip file, written atomically, without the time and the name that gzip stores by default."""
    with atomic(path) as file, gzip.GzipFile("", "wb", LEVEL, file, mtime=0) as packed:
        yield packed


def line(record: Mapping[str, str]) -> bytes:
    """One line of JSON."""
    return json.dumps(record, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def records(path: Path, wanted: Callable[[str], bool]) -> Iterator[dict[str, str]]:
    """The records of a .jsonl.gz file whose group is wanted. The group is the first field of a line, so the other
    lines need not be parsed."""
    with gzip.open(path, "rb") as lines:
        yield from (json.loads(line) for line in lines if wanted(line.split(b'"', 4)[3].decode()))
