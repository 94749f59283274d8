"""Plain text of the files of an unpacked Debian package: which files are read, and how each format is."""

import bz2
import gzip
import hashlib
import lzma
import re
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from tools.corpus.markup import markup_text
from tools.corpus.roff import man_text

LANGUAGES = (
    "af|am|ar|as|ast|be|bg|bn|br|bs|ca|cs|cy|da|de|el|eo|es|et|eu|fa|fi|fr|ga|gl|gu|he|hi|hr|hu|hy|id|is|it|ja|ka|kk|km|"
    "kn|ko|lt|lv|mk|ml|mr|ms|nb|ne|nl|nn|no|oc|or|pa|pl|ps|pt|ro|ru|si|sk|sl|sq|sr|sv|ta|te|tg|th|tr|ug|uk|uz|vi|zh"
)
FOREIGN = re.compile(rf"(?:^|[/.])(?:{LANGUAGES})(?:[-_]\w+)?(?=[/.]|$)", re.IGNORECASE)
"""A folder or a part of a file name that is the code of a language other than English."""
UNWANTED = re.compile(
    r"changelog|change_log|copyright|copying|licen[cs]e|genindex|searchindex|/search\.|modindex|index-all|allclasses|"
    r"allpackages|package-(?:tree|use|frame)|/class-use/|overview-tree|deprecated-list|constant-values|serialized-form|"
    r"-members\.html|/src-html/|/_modules/|/source/src/|_source\.html|\.ipynb\.txt|cmakelists|requirements|/tests?/|"
    r"sitemap|/print\.html|/toc\.html|hierarchy\.html|annotated\.html|functions_\w+\.html|globals_\w+\.html",
    re.IGNORECASE,
)
"""Names of generated indexes, lists of members, copies of source code, change logs and licences."""
MANUAL = re.compile(r"/man/.*\.[1-9][a-z]*$")
POD_BLOCK = re.compile(
    r"^=(?:begin|for)\b.*?(?:^=end\b[^\n]*$|\n\n)|^=(?:cut|pod|over|back|encoding)\b[^\n]*$", re.M | re.S
)
POD_CODE = re.compile(r"\b[BCFILNSX]<(?:< (.*?) >|([^<>]*))>")
INFO_MENU = re.compile(r"^\* [^\n]*::?[^\n]*$|^\* Menu:$|^File: [^\n]*Node: [^\n]*$", re.MULTILINE)
OPENERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.decompress, ".dz": gzip.decompress, ".bz2": bz2.decompress, ".xz": lzma.decompress,
}  # fmt: skip
CODE = (".c", ".h")


def info_text(source: str) -> str:
    """The text of a GNU Info file: its nodes without headers, menus and the tag table."""
    nodes = source.split("\x1f")[1:]  # the first part says how the file was made
    return "\n".join(INFO_MENU.sub("", node) for node in nodes if "Tag Table:" not in node and "Indirect:" not in node)


def pod_text(source: str) -> str:
    """The text of Perl's documentation format, without commands and formatting codes."""
    text = re.sub(r"^=(?:head\d|item) ?", "", POD_BLOCK.sub("", source), flags=re.MULTILINE)
    for _ in range(3):  # codes are nested: B<C<x>>
        text = POD_CODE.sub(lambda match: match[1] or match[2] or "", text)
    return text.replace("E<lt>", "<").replace("E<gt>", ">")


def as_is(source: str) -> str:
    """Text that needs no conversion: plain text, reStructuredText, Markdown, AsciiDoc."""
    return source


def sword_text(index: Path) -> str:
    """The text of a SWORD module: zlib blocks in a .bzz file, whose index (.bzs) has offset and size of each block.
    Other modules call the two files .czz and .czs, or .vzz and .vzs."""
    packed = index.with_suffix(index.suffix[:-1] + "z").read_bytes()
    blocks = [packed[offset : offset + size] for offset, size, _ in struct.iter_unpack("<3I", index.read_bytes())]
    return markup_text("".join(zlib.decompress(block).decode("utf-8", "replace") for block in blocks if block))


FORMATS: dict[str, Callable[[str], str]] = {
    **dict.fromkeys([".txt", ".text", ".rst", ".md", ".markdown", ".adoc", ".asciidoc", ".dict"], as_is),
    **dict.fromkeys([".html", ".htm", ".xhtml", ".docbook", ".page"], markup_text),
    ".info": info_text,
    ".pod": pod_text,
}
"""File suffix, without compression and language -> function that extracts the text."""


def format_of(name: str) -> Callable[[str], str] | None:
    """The function that extracts text from a file, chosen by its path; None for a file that is not read."""
    if MANUAL.search(name):
        return man_text
    suffix = Path(re.sub(r"\.en$", "", re.sub(r"\.info-\d+$", ".info", name))).suffix.lower()
    if not suffix and "/games/fortunes/" in name:
        return as_is
    return FORMATS.get(suffix)


def texts_of(tree: Path) -> Iterator[str]:
    """The texts of all English documents in a folder, in the order of their paths; exact copies of files once."""
    files = sorted(path for path in tree.rglob("*") if path.is_file() and not path.is_symlink())
    # Sphinx ships the sources of its pages: they are cleaner than the pages made from them.
    rendered = tuple({str(path).partition("_sources/")[0] for path in files if "/_sources/" in str(path)})
    contents: set[bytes] = set()
    for path in files:
        name = "/" + path.relative_to(tree).as_posix()
        if UNWANTED.search(name) or FOREIGN.search(name) or (name.endswith(".html") and str(path).startswith(rendered)):
            continue
        if path.suffix in {".bzs", ".czs", ".vzs"}:
            yield sword_text(path)
            continue
        opener = OPENERS.get(path.suffix)
        extract = format_of(name.removesuffix(path.suffix) if opener else name)
        if extract is None:
            continue
        content = path.read_bytes()
        digest = hashlib.sha256(content).digest()
        if digest not in contents:
            contents.add(digest)
            yield extract(decoded(opened(content, opener) if opener else content))


def opened(content: bytes, opener: Callable[[bytes], bytes]) -> bytes:
    """Decompressed content; empty if it is damaged, as the examples of some packages are on purpose."""
    try:
        return opener(content)
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError):
        return b""


def decoded(content: bytes) -> str:
    """UTF-8, or Latin-1 where that fails: old documents, in which any byte is a character."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def sources_of(tree: Path) -> Iterator[tuple[str, str]]:
    """Path and text of every C file in the archives (tar.xz) of a folder, in the order of the archive."""
    for archive in sorted(tree.rglob("*.tar.xz")):
        with tarfile.open(archive) as members:
            for member in members:
                content = members.extractfile(member) if member.isfile() and member.name.endswith(CODE) else None
                if content is not None:
                    yield member.name.partition("/")[2], decoded(content.read())
