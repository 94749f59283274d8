"""A text file as documents: in pieces of bounded size, line by line, or by paragraphs between blank lines."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from anyformer.data.sources.files import LONGEST, OnError, blocks, lines
from anyformer.errors import DataError

Documents = Literal["file", "line", "paragraph"]


def documents(path: Path, by: Documents, piece: int, encoding: str, on_error: OnError) -> Iterator[tuple[int, str]]:
    """(number of its first line, text) of every document that is not blank."""
    if by == "file":
        texts = _pieces(path, piece, encoding, on_error)
    elif by == "line":
        texts = lines(path, encoding, on_error)
    else:
        texts = _paragraphs(path, encoding, on_error)
    return ((number, text) for number, text in texts if text.strip())


def _pieces(path: Path, size: int, encoding: str, on_error: OnError) -> Iterator[tuple[int, str]]:
    """All of the text, cut after a line, else after a word, into pieces of at most `size` characters."""
    number, rest = 1, ""
    for block in blocks(path, encoding, on_error):
        rest += block
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
