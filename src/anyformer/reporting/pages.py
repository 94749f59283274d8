"""Templates to pages: one file each, everything inside, nothing loaded, nothing that runs."""

import base64
import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

TEMPLATES = Path(__file__).parent / "templates"
CSS = "page.css"


def html(template: str, facts: Mapping[str, Any]) -> str:
    """A page from `template`.html.j2. All that is not a picture of ours is escaped, and the page may load nothing."""
    css = (TEMPLATES / CSS).read_text(encoding="utf-8")
    sha = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{sha}'; base-uri 'none'; form-action 'none'"
    page = _environment().get_template(f"{template}.html.j2")
    return page.render(**facts, css=Markup(css), policy=policy)


def markdown(template: str, facts: Mapping[str, Any]) -> str:
    """The same facts from `template`.md.j2."""
    return re.sub(r"\n{3,}", "\n\n", _environment().get_template(f"{template}.md.j2").render(**facts)).strip() + "\n"


def store(path: Path, content: str | bytes) -> Path:
    """Writes a page or a picture; whoever reads meanwhile sees the old one or the new one."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "replace"))
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)
    return path


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=lambda name: name is not None and ".html." in name,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"cell": _cell, "fenced": _fenced}
    return environment


def _cell(value: Any) -> str:
    """Text in a line or a table of Markdown, taken literally."""
    return re.sub(r"([\\`*_{}\[\]<>|#~])", r"\\\1", " ".join(str(value).split()))


def _fenced(text: str) -> str:
    """Text as it is, between fences that it cannot close."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"
