"""Plain text of manual pages in the man and mdoc macros of roff.

Only what shapes text is understood: headings, paragraphs, fonts, unfilled examples. Conditions, registers and tables
are left out. Filled lines become one line per paragraph.
"""

import re

SKIPPED = re.compile(r"^[.']\s*(?:de|am|ig)\b.*?^\.\.\s*$|^[.']\s*TS\b.*?^[.']\s*TE\b[^\n]*$", re.DOTALL | re.MULTILINE)
"""Definitions of macros, ignored blocks and tables."""
START = re.compile(r"^[.']\s*(?:TH|Dd)\b[^\n]*\n", re.MULTILINE)
MACRO = re.compile(r"[.']\s*([A-Za-z]+)\s*(.*)")
ARGUMENT = re.compile(r'"((?:[^"]|"")*)"?|(\S+)')
HEADINGS = {"SH", "SS", "Sh", "Ss"}
PARAGRAPHS = {"PP", "P", "LP", "Pp", "sp", "TP", "HP", "IP", "RS", "RE", "It", "Bl", "El"}
WORDS = {"B", "I", "SM", "SB"}
ALTERNATING = {"BR", "RB", "BI", "IB", "IR", "RI"}
INLINE = (
    "Nm Ar Op Pa Va Vt Dv Em Sy Li Ql Cm Ev Er Ic Fa Fn Dq Sq Nd Xr Pq No Ns Ft Ad An Tn Bx Fx Nx Ox Lk Mt Qq Aq Fl Cd"
)
MDOC = set(INLINE.split())
SYMBOLS = {
    "aq": "'", "dq": '"', "lq": '"', "rq": '"', "oq": "'", "cq": "'", "em": " - ", "en": "-", "hy": "-", "bu": "*",
    "co": "(c)", "ha": "^", "ti": "~", "rs": "\\", "ga": "`", "mu": "x", "->": "->", "<=": "<=", ">=": ">=", "at": "@",
}  # fmt: skip
ESCAPE = re.compile(r"\\(?:f(?:\[[^]]*\]|\(..|.)|s[-+]?\d+|\*(?:\[[^]]*\]|\(..|.)|\((..)|\[([^]]*)\]|\"[^\n]*|([^\n]))")
PLAIN = {"-": "-", "e": "\\", " ": " ", "~": " ", "0": " ", "'": "'", "`": "`", ".": ".", "t": " "}


def man_text(source: str) -> str:
    """The text of a manual page; empty for an alias of another page."""
    start = START.search(source)
    if start is None or source.startswith(".so "):
        return ""
    page = Page()
    for line in SKIPPED.sub("", source[start.end() :]).splitlines():
        page.read(line)
    return unescaped("".join(page.texts))


class Page:
    """The state of a page while its lines are read: the text so far, and whether lines are filled."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.filled = True

    def read(self, line: str) -> None:
        if not line.startswith((".", "'")):
            self.text(line)
        elif macro := MACRO.match(line):
            self.macro(macro[1], [quoted.replace('""', '"') or word for quoted, word in ARGUMENT.findall(macro[2])])

    def text(self, line: str) -> None:
        self.texts += [line.strip(), " "] if self.filled and line.strip() else [line, "\n"]

    def macro(self, name: str, arguments: list[str]) -> None:
        if name in HEADINGS:
            self.texts += ["\n\n", " ".join(arguments), "\n\n"]
        elif name in PARAGRAPHS:
            # TP and IP begin a list item: IP carries its label, the label of TP is the next line
            label = arguments[:1] if name == "IP" else arguments if name == "It" else []
            self.texts += ["\n\n", *(f"{word} " for word in label if word != r"\(bu")]
        elif name in {"nf", "EX", "Bd", "fi", "EE", "Ed"}:
            self.filled = name in {"fi", "EE", "Ed"}
            self.texts.append("\n\n")
        elif name == "br":
            self.texts.append("\n")
        elif name in ALTERNATING:
            self.text("".join(arguments))
        elif name in WORDS | MDOC:
            self.text(("-" if name == "Fl" else "") + " ".join(word for word in arguments if word not in MDOC))


def unescaped(text: str) -> str:
    """Text with the escape sequences of roff replaced by the characters they print."""
    return ESCAPE.sub(lambda match: symbol(match[1] or match[2]) if match[1] or match[2] else plain(match[3]), text)


def symbol(name: str) -> str:
    """A named glyph such as \\(bu; glyphs that are not in the table print nothing."""
    return SYMBOLS.get(name, "")


def plain(character: str | None) -> str:
    """A backslash and one character; those that only move the pen print nothing."""
    return PLAIN.get(character or "", "")
