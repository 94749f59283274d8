"""Renders templates into self-contained pages that load no other file and run no script."""

import base64
import hashlib
import os
import re
import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from anyformer.core.discovery import imported_files

TEMPLATES = Path(__file__).parent / "templates"
CSS = "page.css"


def html(template: str, facts: Mapping[str, Any]) -> str:
    """Renders `template`.html.j2. Everything except generated pictures is escaped; the page may not load anything."""
    css = (TEMPLATES / CSS).read_text(encoding="utf-8")
    sha = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{sha}'; base-uri 'none'; form-action 'none'"
    page = _environment().get_template(f"{template}.html.j2")
    return page.render(**facts, css=Markup(css), policy=policy)


def markdown(template: str, facts: Mapping[str, Any]) -> str:
    """Renders `template`.md.j2 as Markdown."""
    return re.sub(r"\n{3,}", "\n\n", _environment().get_template(f"{template}.md.j2").render(**facts)).strip() + "\n"


def store(path: Path, content: str | bytes) -> Path:
    """Writes a page or a picture atomically: a concurrent reader sees the old file or the new file."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "replace"))
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)
    return path


def program() -> str:
    """The name of the program in a suggested command, with the `--import` options of this process."""
    here, files = Path.cwd(), map(Path, imported_files())
    shown = [file.relative_to(here) if file.is_relative_to(here) else file for file in files]
    return " ".join(["anyformer", *(f"--import {shlex.quote(str(file))}" for file in shown)])


@cache
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
    """Text for a line or table cell of Markdown, on one line with special characters escaped."""
    return re.sub(r"([\\`*_{}\[\]<>|#~])", r"\\\1", " ".join(str(value).split()))


def _fenced(text: str) -> str:
    """Text as a fenced code block, with a fence longer than any run of backticks in the text."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"
