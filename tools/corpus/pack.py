"""Packing: a folder as numbered parts of a limited size, with an index that has the hash of every part and file.

The parts are the files end to end, in the order of the index, cut every `limit` bytes.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tools.corpus.packages import CorpusError
from tools.corpus.writing import atomic

INDEX = "index.json"
LIMIT = 50_000_000
CHUNK = 2**20


def entry(path: Path, name: str) -> dict[str, Any]:
    """Name, size and hash of a file."""
    with path.open("rb") as file:
        return {
            "name": name, "size": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest(),
        }  # fmt: skip


def chunks(paths: Sequence[Path]) -> Iterator[bytes]:
    """The content of files, one after the other, in pieces that fit into memory."""
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                yield chunk


def pack(folder: Path, out: Path, limit: int = LIMIT) -> int:
    """Packs all files of a folder into parts of at most `limit` bytes; returns the number of parts."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    if not paths:
        raise CorpusError(f"{folder} has no files to pack.")
    if out.exists() and any(out.iterdir()):
        raise CorpusError(f"{out} is not empty. Name a new folder for the parts.")
    names, content, rest = [], chunks(paths), b""
    while rest or (rest := next(content, b"")):
        names.append(f"part-{len(names):03d}")
        with atomic(out / names[-1]) as part:
            room = limit
            while room and (rest or (rest := next(content, b""))):
                part.write(rest[:room])
                room, rest = room - len(rest[:room]), rest[room:]
    index = {
        "parts": [entry(out / name, name) for name in names],
        "files": [entry(path, path.relative_to(folder).as_posix()) for path in paths],
    }
    with atomic(out / INDEX) as file:
        file.write(json.dumps(index, indent=1).encode() + b"\n")
    return len(names)


def read_index(folder: Path) -> dict[str, Any]:
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        return {"parts": index["parts"], "files": index["files"]}
    except FileNotFoundError:
        raise CorpusError(f"{folder / INDEX} is missing.") from None
    except (ValueError, KeyError, TypeError):
        raise CorpusError(f"{folder / INDEX} is damaged: it is not an index of parts.") from None


def check(path: Path, expected: dict[str, Any], kind: str) -> None:
    """Refuses a part or file that is missing or differs from its entry in the index."""
    if not path.is_file():
        raise CorpusError(f"{kind} {expected['name']} is missing from {path.parent}.")
    if path.stat().st_size != expected["size"]:
        sizes = f"{path.stat().st_size:,} bytes instead of {expected['size']:,}"
        raise CorpusError(f"{kind} {expected['name']} is damaged: it has {sizes}.")
    if entry(path, expected["name"])["sha256"] != expected["sha256"]:
        raise CorpusError(f"{kind} {expected['name']} is damaged: its SHA-256 differs from the index.")


def join(parts: Path, folder: Path) -> int:
    """Restores the files of packed parts in a folder and checks them; returns their number. All parts are checked
    before the first file is written."""
    index = read_index(parts)
    for expected in index["parts"]:
        check(parts / expected["name"], expected, "Part")
    content, rest = chunks([parts / expected["name"] for expected in index["parts"]]), b""
    for expected in index["files"]:
        path = folder / expected["name"]
        if not path.resolve().is_relative_to(folder.resolve()):
            raise CorpusError(f"The index is damaged: file {expected['name']} lies outside of {folder}.")
        with atomic(path) as file:
            room = expected["size"]
            while room and (rest or (rest := next(content, b""))):
                file.write(rest[:room])
                room, rest = room - len(rest[:room]), rest[room:]
        check(path, expected, "File")
    return len(index["files"])
