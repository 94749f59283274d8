"""Documents of a package: cleaned, cut to a length, and without boilerplate and text that is not English prose."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator

SHORTEST = 200
"""Characters; shorter documents are headings, redirections and stubs."""
LONGEST = 32_000
"""Characters of one record: a longer document is cut after a paragraph into several records."""
REPEATED, REPEATED_SHARE = 10, 0.3
"""Lines in more documents of a package than this number are navigation, footers and notices, unless they look like
code; above this share of the documents even then."""
CODE_LIKE = re.compile(r"[;{}=#<>()\[\]\\]")
FEWEST_COMMON_WORDS = 0.12
"""English prose has about 35 % of these words, dictionaries 20 %, tables and lists of names less than 10 %."""
COMMON = "the of and to a in is for that be it as with are this on by or if not an from can will which you at when"
COMMON_WORDS = frozenset(COMMON.split())
FEWEST_LETTERS = 0.65
"""Share of letters among the characters that are not spaces."""
MOST_DEFINITIONS = 0.5
"""Share of the lines of a header that are #define: above it, a program wrote the file from a list of registers."""
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u200b-\u200f\ufeff\ufffd]")
EMPTY_LINES = re.compile(r"\n\n\n+")
WORD = re.compile(r"[a-z]+")
LEFT_OUT = re.compile(r"drivers/(?:gpu|staging|net/wireless)/|arch/(?!x86/|arm64/)|tools/|samples/|scripts/")
"""Folders of the kernel that are mostly variants of the others: drivers of one kind, ports, copies of headers."""


def cleaned(text: str) -> str:
    """Text with Unix line ends, without control characters and trailing spaces."""
    text = CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n").replace("\xa0", " ").replace("\f", "\n"))
    return "\n".join(map(str.rstrip, text.split("\n"))).strip("\n")


def without_repeated_lines(texts: list[str]) -> Iterator[str]:
    """The documents of one package without the lines that many of them contain."""
    if len(texts) <= REPEATED:
        yield from texts
        return
    counts = Counter(line for text in texts for line in {line.strip() for line in text.split("\n")})
    share = max(REPEATED, REPEATED_SHARE * len(texts))
    repeated = {
        line
        for line, count in counts.items()
        if count > (share if CODE_LIKE.search(line) else REPEATED)
        # lines without letters belong to examples and tables, capitals are the headings of manual pages
        and any(map(str.isalpha, line))
        and not line.isupper()
    }
    for text in texts:
        yield "\n".join(line for line in text.split("\n") if line.strip() not in repeated)


def pieces(text: str, longest: int = LONGEST) -> Iterator[str]:
    """Cuts a text after an empty line, or after any line if there is none, into parts of at most `longest` letters."""
    start = 0
    while len(text) - start > longest:
        end = start + longest
        cut = text.rfind("\n\n", start + longest // 2, end)
        cut = cut if cut > 0 else text.rfind("\n", start + 1, end)
        cut = cut if cut > 0 else end
        yield text[start:cut].strip("\n")
        start = cut
    yield text[start:].strip("\n")


def is_prose(text: str) -> bool:
    """Whether a text is English and mostly made of sentences: by the share of common words and of letters."""
    words = WORD.findall(text.lower())
    letters, visible = sum(map(len, words)), sum(map(len, text.split()))
    common = sum(map(COMMON_WORDS.__contains__, words))
    return len(text) >= SHORTEST and common >= FEWEST_COMMON_WORDS * len(words) and letters >= FEWEST_LETTERS * visible


def prose_documents(texts: Iterable[str]) -> Iterator[str]:
    """Records of prose from the raw texts of one package."""
    # Exact copies are removed first, or all of their lines would count as repeated.
    distinct = list(dict.fromkeys(cleaned(text) for text in texts if text))
    for text in without_repeated_lines(distinct):
        yield from filter(is_prose, pieces(EMPTY_LINES.sub("\n\n", text)))


def code_documents(files: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Folder (at most two levels) and text of records of source code, without headers that list registers."""
    for path, text in files:
        if not LEFT_OUT.match(path) and text.count("#define") <= MOST_DEFINITIONS * text.count("\n"):
            folder = "/".join(path.split("/")[:-1][:2])
            yield from ((folder, piece) for piece in pieces(cleaned(text)) if len(piece) >= SHORTEST)
