"""Plain text of HTML and DocBook, by regular expressions.

A parser would take ten times as long for gigabytes of pages. What differs on broken markup is a stray line here and
there, and lines that many pages share are removed later anyway.
"""

import html
import re

DROPPED = re.compile(
    r"<!--.*?-->|<(script|style|head|nav|header|footer|svg|math|select|button|index|indexterm|info|articleinfo|bookinfo)"
    r"\b[^>]*?(?<!/)>.*?</\1\s*>|<[!?][^>]*>",
    re.DOTALL | re.IGNORECASE,
)
"""Comments, declarations, and elements whose content is not shown as text or is navigation."""
PREFORMATTED = re.compile(r"<(pre|programlisting|screen)\b[^>]*(?<!/)>(.*?)</\1\s*>", re.DOTALL | re.IGNORECASE)
MAIN = ("<main", 'role="main"', "<body", "<BODY")
AFTER_MAIN = ("</main>", 'class="sphinxsidebar', 'class="footer', 'class="navfooter', "</body>", "</BODY>")
PARAGRAPHS = "p h1 h2 h3 h4 h5 h6 div section article ul ol dl table blockquote para simpara title subtitle note"
LINES = "br li dt dd tr item listitem varlistentry term row caption itemizedlist orderedlist variablelist"
SPACES: dict[str, str] = {
    **{f"{slash}{name}": "\n\n" for name in PARAGRAPHS.split() for slash in ("", "/")},
    **{f"{slash}{name}": "\n" for name in LINES.split() for slash in ("", "/")},
    **dict.fromkeys(["/td", "/th", "/entry"], " "),
}
"""Tag -> the white space that it stands for. Other tags stand for nothing."""
TAG = re.compile(r"<(/?[A-Za-z][\w:]*)[^>]*>")


def markup_text(source: str) -> str:
    """The text of an HTML page or a DocBook file: one paragraph a line, preformatted blocks as they are."""
    source = DROPPED.sub(" ", main_part(source))
    texts, end = [], 0
    for block in PREFORMATTED.finditer(source):
        texts += [flowing(source[end : block.start()]), "\n\n", TAG.sub("", block[2]), "\n\n"]
        end = block.end()
    text = "".join([*texts, flowing(source[end:])])
    return html.unescape(text).replace("¶", "")  # the permanent links that Sphinx adds to headings


def main_part(source: str) -> str:
    """The main content of a page, by the first mark in MAIN that it has, up to the first mark in AFTER_MAIN."""
    start = next((place for mark in MAIN if (place := source.find(mark)) >= 0), -1)
    start = source.find(">", start) + 1 if start >= 0 else 0
    ends = [place for mark in AFTER_MAIN if (place := source.find(mark, start)) >= 0]
    end = source.rfind("<", start, min(ends) + 1) if ends else len(source)
    return source[start:end]


def flowing(source: str) -> str:
    """Text outside of preformatted blocks: tags decide where lines end, line breaks of the source do not."""
    text = TAG.sub(lambda tag: SPACES.get(tag[1].lower(), ""), " ".join(source.split()))
    return "\n".join(map(str.strip, text.split("\n")))
