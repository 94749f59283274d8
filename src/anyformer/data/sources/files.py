"""Files of the user as text: plain, gzip or zstd, in blocks, lines or documents, never loaded as a whole.

A file that cannot be read raises a DataError that names file:line, the reason, and what to type next.
"""

import codecs
import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, count
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar, cast
from warnings import warn

from anyformer.data.record import Record, SourceSpec
from anyformer.disk import identity, missing, settled
from anyformer.errors import DataError, SpecError

OnError = Literal["stop", "skip"]
Documents = Literal["file", "line", "paragraph"]
T = TypeVar("T")
TOLERATED = 0.01  # share of bad lines; with more, skipping them would hide that the whole file is not as expected
BLOCK, SNIFF = 1 << 18, 1 << 13
HIDDEN = re.compile(r"(^|/)\.")  # a file, or a folder above it
CACHED = 32  # blocks of a small file, which stay in memory
LONGEST = 1 << 26  # characters of a line: a file without line ends must not fill the memory
PIECES, SMALLEST, LARGEST = 50, 512, 16_384
"""Pieces of a file, as far as their size in characters allows."""

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_FORMATS = {
    b"\x89PNG\r\n": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"GIF87a": "a GIF picture",
    b"GIF89a": "a GIF picture",
    b"PK\x03\x04": "a zip archive (.docx, .xlsx and .pt are such, too)",
    b"PK\x05\x06": "an empty zip archive",
    b"%PDF-": "a PDF",
    b"\xfd7zXZ": "an xz archive",
    b"7z\xbc\xaf": "a 7z archive",
    b"BZh91AY&SY": "a bzip2 archive",
    b"PAR1": "a Parquet file, which the source 'parquet' reads",
    b"SQLite format 3": "an SQLite database",
    b"\x7fELF": "a program",
}
_WIDE_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_TEXT_BYTES = bytes({7, 8, 9, 10, 12, 13, 27, *range(32, 256)})


@dataclass(frozen=True, kw_only=True)
class FileSource(SourceSpec):
    """A source that reads files of the user."""

    on_error: OnError = "stop"
    """What to do at a bad line or row: stop, or skip it (which stops past 1%)."""

    def fingerprint(self) -> str:
        """A hash of the bytes and of the options, but not of the paths."""
        files, hidden = self.files(), ("path", "target_path", "on_error")
        options = {key: value for key, value in self.to_dict().items() if key not in hidden}
        digest = hashlib.sha256(json.dumps([options, list(files) if len(files) > 1 else []], sort_keys=True).encode())
        for file in files.values():
            try:
                with readable(file).open("rb") as stream:
                    digest.update(hashlib.file_digest(stream, "sha256").digest())
            except OSError as error:
                raise DataError(f"{file}: cannot be read: {_reason(error)}.") from None
        return digest.hexdigest()


def existing(path: str) -> Path:
    """The path if it exists; otherwise a DataError with the similar names in its folder."""
    file = Path(path).expanduser()
    try:
        file.stat()
    except FileNotFoundError:
        raise DataError(missing(file)) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path!r}: cannot be read: {_reason(error)}.") from None
    return file


def readable(path: Path) -> Path:
    """The path if it is a file that is not empty; otherwise a DataError."""
    existing(str(path))
    if path.is_dir():
        raise DataError(f"{path}: is a folder, not a file. Use data.source.kind=folder to read all of its files.")
    if not path.is_file():
        raise DataError(f"{path}: is not a regular file. Data are read more than once: save them to a file first.")
    if not path.stat().st_size:
        raise DataError(f"{path}: is empty (0 bytes).")
    return path


def files_in(path: Path, *patterns: str) -> dict[str, Path]:
    """Name -> file: the file itself, or every file of a folder that fits, at any depth, in an order that never changes.

    Hidden files and empty ones are left out; a broken link is not, so that reading it raises an error.
    """
    if not path.is_dir():
        return {path.name: readable(path)}
    matches = {file.relative_to(path).as_posix(): file for pattern in patterns for file in path.rglob(pattern)}
    files = {name: file for name, file in sorted(matches.items()) if not file.is_dir() and not HIDDEN.search(name)}
    if not files:
        names = " or ".join(patterns)
        raise DataError(f"{path}: the folder holds no file{'' if names == '*' else f' called {names}'}.")
    filled = {name: file for name, file in files.items() if not file.exists() or file.stat().st_size}
    if not filled:
        raise DataError(f"{path}: every file in the folder is empty ({len(files)} of them).")
    return filled


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, unpacked if they begin as gzip or zstd do, whatever the file is called."""
    readable(path)
    try:
        raw = path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {_reason(error)}.") from None
    with raw:
        magic = raw.read(4)
        raw.seek(0)
        if magic.startswith(_GZIP):
            with gzip.open(raw) as unpacked:
                yield cast(BinaryIO, unpacked)
        elif magic == _ZSTD:
            with pyarrow(path).input_stream(str(path), compression="zstd") as unpacked:
                yield unpacked
        else:
            yield raw


def pyarrow(path: Path | str) -> Any:
    """The module that reads zstd and Parquet, of the extra `data`."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise DataError(f"{path}: reading this needs pyarrow: pip install 'anyformer[data]'") from None
    return pyarrow


@lru_cache(maxsize=8)
def _cached_blocks(path: Path, *identity: int) -> list[bytes]:
    """The first blocks of a file, as far as they were read; an empty one is the end."""
    return []


def _raw_blocks(path: Path) -> Iterator[bytes]:
    """The unpacked bytes in blocks of 256 KiB, and an empty block at the end. The first block is cached, and all blocks
    of a small file, since columns, form and amount of the data are looked at before the data are prepared."""
    stamp = identity(readable(path))
    cache = _cached_blocks(path, *stamp) if settled([stamp]) else []
    room = CACHED if stamp[0] <= CACHED * BLOCK else 1
    cached = tuple(cache)  # another thread may add blocks meanwhile
    yield from cached
    if cached and not cached[-1]:
        return
    with opened(path) as stream:
        skip = sum(map(len, cached))
        while skip and (data := stream.read(min(skip, BLOCK))):
            skip -= len(data)
        for place in count(len(cached)):
            data = stream.read(BLOCK)
            if place < room:
                cache[place : place + 1] = [data]
            yield data
            if not data:
                return


def head(path: Path) -> bytes:
    """The first bytes, unpacked."""
    return _next(_raw_blocks(path), path, 1)[:SNIFF]


def _next(raw: Iterator[bytes], path: Path, line: int) -> bytes:
    try:
        return next(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path}:{line}: cannot be read on from here: {_reason(error)}. Is the file complete?"
        ) from None


def looks_like_text(path: Path, encoding: str) -> bool:
    """Whether the first bytes could be text."""
    try:
        _refuse_binary(path, head(path), encoding)
    except DataError:
        return False
    return True


def _decoded(path: Path, raw: Iterator[bytes], encoding: str, on_error: OnError) -> Iterator[str]:
    """The text of the blocks of a file. Bytes that are no text stop it, or become surrogates that `kept` refuses."""
    decoder = codecs.getincrementaldecoder(encoding)("strict" if on_error == "stop" else "surrogateescape")
    size, line = 0, 1
    while True:
        data = _next(raw, path, line)
        if not size:
            _refuse_binary(path, data[:SNIFF], encoding)
        size += len(data)
        try:
            text = decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            raise DataError(_undecodable(path, encoding, error, size, line)) from None
        if size == len(data):
            text = text.removeprefix("\ufeff")
        line += text.count("\n")
        yield text
        if not data:
            return


def lines(path: Path, encoding: str = "utf-8", on_error: OnError = "stop") -> Iterator[tuple[int, str]]:
    """(number, line without its end), from 1, as editors and grep count."""
    number, rest = 0, ""
    for block in _decoded(path, _raw_blocks(path), encoding, on_error):
        *complete, rest = (rest + block).split("\n")
        for number, line in enumerate(complete, number + 1):  # noqa: B020 (goes on from the block before)
            yield number, line.removesuffix("\r")
        if len(rest) > LONGEST:
            raise DataError(f"{path}:{number + 1}: a line of more than {LONGEST:,} characters.")
    if rest:
        yield number + 1, rest


def documents(
    path: Path, by: Documents, piece: int | None, encoding: str, on_error: OnError
) -> Iterator[tuple[int, str]]:
    """(number of its first line, text) of every document that is not blank. `piece`: characters of a piece of a file at
    most; None: a fiftieth of the file."""
    if by == "file":
        texts = _pieces(path, piece, encoding, on_error)
    else:
        texts = (lines if by == "line" else _paragraphs)(path, encoding, on_error)
    return ((number, text) for number, text in texts if text.strip())


def _pieces(path: Path, size: int | None, encoding: str, on_error: OnError) -> Iterator[tuple[int, str]]:
    """All of the text, cut after a line, else after a word, into pieces of at most `size` characters."""
    raw = _raw_blocks(path)
    if size is None:  # by the unpacked bytes, so that a compressed file is cut like the plain one
        beginning, total = list[bytes](), 0
        while total < PIECES * LARGEST and (not beginning or beginning[-1]):
            beginning.append(_next(raw, path, 1))
            total += len(beginning[-1])
        raw, size = chain(beginning, raw), max(SMALLEST, min(LARGEST, total // PIECES))
    number, rest = 1, ""
    for block in _decoded(path, raw, encoding, on_error):
        rest = (rest + block).replace("\r\n", "\n")  # line ends of Windows are not part of the text
        start = 0
        while len(rest) - start > size:
            end = _cut(rest, start, start + size)
            yield number, rest[start:end]
            number += rest.count("\n", start, end)
            start = end
        rest = rest[start:]
    yield number, rest


def _cut(text: str, start: int, end: int) -> int:
    """Where to end a piece: the last blank line, line end or space of its second half."""
    for border in ("\n\n", "\n", " "):
        border_at = text.rfind(border, start + (end - start) // 2, end)
        if border_at >= 0:
            return border_at + len(border)
    return end


def _paragraphs(path: Path, encoding: str, on_error: OnError) -> Iterator[tuple[int, str]]:
    first, size, collected = 1, 0, list[str]()
    for number, line in lines(path, encoding, on_error):
        if line.strip():
            first = first if collected else number
            collected.append(line)
            size += len(line)
            if size > LONGEST:
                raise DataError(f"{path}:{first}: a paragraph of more than {LONGEST:,} characters. Use documents=file")
        elif collected:
            yield first, "\n".join(collected)
            size, collected = 0, []
    yield first, "\n".join(collected)


def kept(
    items: Iterable[T | DataError], read: Callable[[T], Record], source: SourceSpec, on_error: OnError
) -> Iterator[Record]:
    """The record of each item. A bad item raises an error or, with on_error=skip, is left out, up to 1% of them."""
    seen, bad, first = 0, 0, ""
    for item in items:
        seen += 1
        try:
            if isinstance(item, DataError):
                raise item
            record = read(item)
            _refuse_surrogates(record)
        except DataError as error:
            if on_error == "stop":
                raise
            bad, first = bad + 1, first or str(error)
            continue
        yield record
    name = source.to_dict().get("path", source.kind)
    if bad > TOLERATED * seen:
        raise DataError(f"{name}: {bad:,} of {seen:,} are bad, more than {TOLERATED:.0%}. The first:\n{first}")
    if bad:
        warn(f"{name}: left out {bad:,} of {seen:,} that are bad. The first: {first}", stacklevel=1)
    if seen == bad:
        raise DataError(f"{name}: there is nothing in it to learn from: no {source.kind} record was found.")


def guarded(items: Iterable[T]) -> Iterator[T | DataError]:
    """The items of one of several files; an error that ends the file becomes the last item, which `kept` may skip."""
    try:
        yield from items
    except DataError as error:
        yield error


def check_encoding(encoding: str) -> None:
    """SpecError unless it is the name of a text encoding."""
    try:
        "a".encode(encoding)
    except (LookupError, ValueError):
        raise SpecError(f"encoding: there is none called {encoding!r}. Try utf-8, utf-16, latin-1 or cp1252.") from None


def _refuse_surrogates(record: Record) -> None:
    for text in (record.text, record.target, record.label):
        if text and not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                escaped = 0xDC80 <= ord(text[error.start]) <= 0xDCFF  # a byte that could not be decoded
                what = "a byte that is not in its encoding" if escaped else "half a character"
                raise DataError(f"{record.where}: holds {what} ({text[error.start]!a}).") from None


def _refuse_binary(path: Path, start: bytes, encoding: str) -> None:
    wide = next((name for mark, name in _WIDE_MARKS.items() if start.startswith(mark)), "")
    if encoding.lower().replace("_", "-").startswith(("utf-16", "utf-32")):
        return
    if wide:
        raise DataError(f"{path}: looks like {wide.upper()}, not {encoding}. Add data.source.encoding={wide}")
    if what := next((what for magic, what in _FORMATS.items() if start.startswith(magic)), ""):
        raise DataError(f"{path}: does not look like text: it is {what}.")
    zero, strange = start.find(b"\0"), len(start.translate(None, _TEXT_BYTES))
    if zero >= 0:
        raise DataError(f"{path}: does not look like text: byte {zero} is zero.")
    if strange > len(start) // 10:
        raise DataError(
            f"{path}: does not look like text: {strange} of the first {len(start)} bytes are control codes."
        )


def _undecodable(path: Path, encoding: str, error: UnicodeDecodeError, count: int, line: int) -> str:
    offset = count - len(error.object) + error.start  # the object begins with what the block before left over
    line += error.object[: error.start].count(b"\n")
    advice = "Name its encoding: data.source.encoding=cp1252 (Western European Windows; or latin-1, utf-16, ...)"
    return f"{path}:{line}: byte {offset} (0x{error.object[error.start]:02x}) is not {encoding}. {advice}"


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
