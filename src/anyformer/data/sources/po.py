"""The .po format of gettext: entries of msgid and msgstr, with contexts, plurals, flags and obsolete ones."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from anyformer.data.sources.files import OnError, check_encoding, head, lines
from anyformer.errors import DataError, SpecError

_STATEMENT = re.compile(r'(msgctxt|msgid|msgid_plural|msgstr|msgstr\[\d+\])\s*"(.*)"')
_CONTINUED = re.compile(r'"(.*)"')
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|.)")
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


class PoEntry(NamedTuple):
    """A text and its translations: one, or one for each plural form."""

    line: int
    text: str
    plural: str
    forms: tuple[str, ...]

    def pairs(self) -> Iterator[tuple[str, str]]:
        """(English, translation): of a plural, the singular with the first form and the plural with the last."""
        if self.text and self.forms and self.forms[0] and (not self.plural or len(self.forms) > 1):
            yield self.text, self.forms[0]
        if self.text and self.plural and self.forms and self.forms[-1]:
            yield self.plural, self.forms[-1]


def entries(path: Path, on_error: OnError) -> Iterator[PoEntry]:
    """Every entry that is neither fuzzy nor obsolete, the header included (its text is empty)."""
    start, fuzzy, last = 0, False, ""
    parts: dict[str, str] = {}
    for number, raw in lines(path, _charset(path), on_error):
        line = raw.strip()
        statement = _STATEMENT.fullmatch(line)
        name = statement[1] if statement else ""
        if last.startswith("msgstr") and (name in ("msgctxt", "msgid") or line.startswith("#") or not line):
            if not fuzzy:
                yield _entry(start, parts)
            start, fuzzy, last, parts = 0, False, "", {}
        if statement:
            start, last = start or number, name
            parts[name] = _unescape(statement[2])
        elif last and (more := _CONTINUED.fullmatch(line)):
            parts[last] += _unescape(more[1])
        elif line.startswith("#,"):
            fuzzy = fuzzy or "fuzzy" in re.split(r"[,\s]+", line)
        elif line.startswith("#~") or not line:  # a flag is of the entry below it only, which may be obsolete
            fuzzy = False
        elif line and not line.startswith("#"):
            raise DataError(f'{path}:{number}: neither a comment nor msgid "..." or msgstr "...": {line[:60]!r}.')
    if last.startswith("msgstr") and not fuzzy:
        yield _entry(start, parts)
    elif parts and not last.startswith("msgstr"):
        raise DataError(f"{path}:{start}: the last entry has no msgstr. Is the file complete?")


def _entry(line: int, parts: dict[str, str]) -> PoEntry:
    forms = tuple(value for name, value in parts.items() if name.startswith("msgstr"))
    return PoEntry(line, parts.get("msgid", ""), parts.get("msgid_plural", ""), forms)


def _unescape(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        code = match[1]
        if code[0] == "x" and len(code) > 1:
            return chr(int(code[1:], 16))
        return chr(int(code, 8)) if code[0] in "01234567" else _LETTERS.get(code, code)

    return _ESCAPE.sub(character, text) if "\\" in text else text


def _charset(path: Path) -> str:
    """The encoding that the header names; utf-8 if it names none that is known."""
    match = re.search(rb"charset=([\w-]+)", head(path))
    name = match[1].decode() if match else "utf-8"
    try:
        check_encoding(name)
    except SpecError:
        return "utf-8"
    return name
