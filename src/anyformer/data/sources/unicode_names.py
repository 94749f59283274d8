"""Names of characters -> what kind of character: LATIN SMALL LETTER A -> Ll          (Unicode, General_Category)

About 32,000 names from the table in Python's `unicodedata`. Names that a rule derives from the code point (ideographs:
the number in hexadecimal; Hangul syllables: their letters) are left out: they would be most of the list.
"""

import sys
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from anyformer.data.record import Record, SourceSpec


@dataclass(frozen=True, kw_only=True)
class UnicodeNames(SourceSpec, kind="unicode_names"):
    """Unicode character name -> general category (Lu, Ll, Nd, Sm, ...): 32,000 labelled texts; needs no download."""

    def records(self) -> Iterator[Record]:
        for code in range(sys.maxunicode + 1):
            name = unicodedata.name(chr(code), "")
            if name and not name.startswith("HANGUL SYLLABLE ") and not name.endswith(f"-{code:04X}"):
                label = unicodedata.category(chr(code))
                yield Record(text=name, label=label, group=name.split()[0], where=f"U+{code:04X}")

    def fingerprint(self) -> str:
        return self.hash_with(unicodedata.unidata_version)
