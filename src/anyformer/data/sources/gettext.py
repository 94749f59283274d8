"""gettext catalogs, in which translated programs store English texts and their translations.

Header, untranslated and fuzzy entries are left out. Of a plural, the singular goes with the first form and the plural
with the last. Records with the same English text are one group, and therefore in one split.
"""

import gettext
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from anyformer.core.readable_numbers import listed
from anyformer.data.record import Record
from anyformer.data.sources.files import FileSource, existing, files_in, guarded, kept, opened
from anyformer.data.sources.po import PoEntry, entries
from anyformer.errors import DataError

PATTERNS = ("*.po", "*.mo")
SKIP = "To read the others without it: data.source.on_error=skip"
_CONTEXT = "\x04"  # between a context and its text, in .mo files
_LANGUAGE = re.compile(r"[a-z]{2}(_[A-Z]{2})?(@[a-z]+)?")


@dataclass(frozen=True, kw_only=True)
class Gettext(FileSource, kind="gettext"):
    """Translation catalogs (.po, .mo), or a folder of them: English text -> its translation."""

    path: str
    """The catalog, or a folder that holds some at any depth."""
    language: str | None = None
    """Of a folder, the language to take: `de` takes de.po and de/LC_MESSAGES/*.mo."""

    @classmethod
    def examples(cls) -> "tuple[Gettext, ...]":
        return (cls(path="locale/de/LC_MESSAGES/django.po"), cls(path="locale", language="de"))

    def records(self) -> Iterator[Record]:
        def read(file: Path) -> Iterator[Record]:
            for entry in _compiled(file) if file.suffix == ".mo" else entries(file, self.on_error):
                for text, target in entry.pairs():
                    yield Record(text=text, target=target, group=text.strip().casefold(), where=f"{file}:{entry.line}")

        pairs = (pair for file in self.files().values() for pair in guarded(read(file)))
        return kept(pairs, lambda pair: pair, self, self.on_error)

    def files(self) -> dict[str, Path]:
        path = existing(self.path)
        files = files_in(path, *PATTERNS)
        if not path.is_dir():
            return files
        spoken = {name: language_of(file) for name, file in files.items()}
        languages = sorted({language for language in spoken.values() if language})
        if self.language is None and len(languages) > 1:
            shown = listed(languages, 12)
            raise DataError(f"{path}: catalogs of {len(languages)} languages ({shown}). Add data.source.language=...")
        chosen = {name: file for name, file in files.items() if self.language in (None, spoken[name])}
        if not chosen:
            raise DataError(f"{path}: no catalog of the language {self.language!r}; there is {', '.join(languages)}.")
        # a .mo file is the .po file beside it once more
        return {name: file for name, file in chosen.items() if name[-3:] != ".mo" or f"{name[:-3]}.po" not in chosen}


def language_of(file: Path) -> str | None:
    """The language of a catalog by its name: de/LC_MESSAGES/app.mo, de.po, app.de.po or app-de.po."""
    folders = file.absolute().parts
    if "LC_MESSAGES" in folders:
        return folders[folders.index("LC_MESSAGES") - 1]
    stem = re.split(r"[.-]", file.stem)[-1]
    return stem if _LANGUAGE.fullmatch(stem) else None


def _compiled(file: Path) -> Iterator[PoEntry]:
    """The entries of a .mo file, numbered. The standard library reads it, and keeps of plurals only the singular."""
    with opened(file) as stream:
        try:
            catalog = vars(gettext.GNUTranslations(stream))["_catalog"]
        except (OSError, ValueError, LookupError, struct.error) as error:
            raise DataError(f"{file}: is not a catalog that gettext can read: {error}. {SKIP}") from None
    for number, (key, target) in enumerate(catalog.items(), 1):
        text, form = key if isinstance(key, tuple) else (key, 0)
        if form == 0:
            yield PoEntry(number, text.rpartition(_CONTEXT)[2], "", (target,))
