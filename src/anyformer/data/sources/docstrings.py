"""The docstrings of Python's standard library, read from its source files; nothing of it is imported or run.

Modules, classes and functions in the order of path and line, each text once; tests are left out.
"""

import ast
import gc
import hashlib
import os
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from anyformer.data.record import Record, SourceSpec
from anyformer.errors import DataError

TESTS = {"test", "tests", "idle_test"}
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, kw_only=True)
class Docstrings(SourceSpec, kind="docstrings"):
    """Every docstring of Python's standard library, about 8,000 short documents; needs no download."""

    def records(self) -> Iterator[Record]:
        return iter(docstrings())

    def fingerprint(self) -> str:
        return library_fingerprint(self.digest())


@cache  # seconds of parsing for two megabytes of text, which preparation reads twice
def docstrings() -> tuple[Record, ...]:
    """Each docstring once, grouped by its top-level module."""
    root = _root()
    records: dict[str, Record] = {}
    # Syntax trees have no cycles, and searching for some after every few hundred nodes takes longer than parsing.
    collecting = gc.isenabled()
    gc.disable()
    try:
        for file in _files(root):
            place = file.relative_to(root).as_posix()
            group = place.partition("/")[0].removesuffix(".py")
            for line, text in _inside(_parsed(file)):
                records.setdefault(text, Record(text=text, group=group, where=f"{place}:{line}"))
    finally:
        if collecting:
            gc.enable()
    return tuple(records.values())


def library_fingerprint(digest: str) -> str:
    """Of the library as installed: version, names and sizes of its files; distributions leave out some of them."""
    root = _root()
    files = [f"{file.relative_to(root).as_posix()} {file.stat().st_size}" for file in _files(root)]
    return hashlib.sha256("\n".join([digest, sys.version.split()[0], *files]).encode()).hexdigest()


def _root() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _files(root: Path) -> list[Path]:
    sources: list[Path] = []
    for folder, inner, names in os.walk(root):
        at_top = Path(folder) == root
        inner[:] = [name for name in inner if name not in TESTS and (not at_top or name in sys.stdlib_module_names)]
        files = (Path(folder, name) for name in names if name.endswith(".py"))
        sources += (file for file in files if not at_top or file.stem in sys.stdlib_module_names)
    if not sources:
        raise DataError(f"{root}: this Python came without its sources. Use a full installation, or a text of yours.")
    return sorted(sources)


def _parsed(file: Path) -> ast.AST:
    with warnings.catch_warnings():  # about the style of the library
        warnings.simplefilter("ignore")
        try:
            return ast.parse(file.read_bytes())
        except SyntaxError:  # a template, or a file that is wrong on purpose
            return ast.Module([], [])


def _inside(node: ast.AST) -> Iterator[tuple[int, str]]:
    if isinstance(node, Documented):
        text = (ast.get_docstring(node) or "").strip()
        if text:
            yield node.body[0].lineno, text
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _inside(child)
