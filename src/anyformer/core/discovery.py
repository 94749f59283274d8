"""Imports every kind: of this package, of other installed packages, and of files that a user names.

Only code that is installed, or that the user names on the command line, is imported; never code that a recipe names.
"""

import hashlib
import importlib
import importlib.util
import json
import pkgutil
import shlex
import sys
import warnings
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from anyformer.errors import SpecError

PACKAGE = "anyformer"
PARTS = "anyformer.parts"
PACKAGES = (
    PARTS, "anyformer.models", "anyformer.data", "anyformer.objectives", "anyformer.optim", "anyformer.generation",
    "anyformer.evaluation.metrics", "anyformer.evaluation.yardsticks", "anyformer.shrink.importances",
    "anyformer.shrink.removals", "anyformer.interop.tokenizers",
)  # fmt: skip
CATALOGUE = Path(__file__).with_name("catalogue.json")
_IMPORTED: list[Path] = []


@cache
def catalogue() -> Mapping[str, Any]:
    """The classes, parts and presets of this package as plain data. `tools/catalogue.py` writes it, and a test compares
    it with the classes."""
    return dict(json.loads(CATALOGUE.read_text(encoding="utf-8")))


def catalogue_suffices() -> bool:
    """Whether the catalogue describes every kind of this process, and torch is not imported, so that there is time to
    save: no file of a user, no installed package, and no edit of the sources since it was written adds a kind or a
    field."""
    if "torch" in sys.modules or _IMPORTED or entry_points(group=PARTS) or source_files() != catalogue()["files"]:
        return False
    return all(row["digest"] == fields_digest(row["module"], name) for name, row in catalogue()["classes"].items())


def source_files() -> list[str]:
    """The files of this package that may define a kind."""
    root = Path(__file__).parents[1]
    folders = (root.joinpath(*package.split(".")[1:]) for package in PACKAGES)
    return sorted(str(file.relative_to(root)) for folder in folders for file in folder.rglob("*.py"))


def fields_digest(module: str, name: str) -> str:
    """A hash of the source of a class up to its first method, which holds its fields. Imports nothing."""
    body = _source(module).partition(f"\nclass {name}(")[2].partition("\n    def ")[0].partition("\n\n\n")[0]
    return hashlib.sha256(body.encode()).hexdigest()[:8]


@cache
def _source(module: str) -> str:
    file = Path(__file__).parents[2].joinpath(*module.split(".")).with_suffix(".py")
    return file.read_text(encoding="utf-8") if file.is_file() else ""


@cache
def _modules() -> Mapping[tuple[str, str], str]:
    """Family and kind -> the module that defines it."""
    classes = catalogue()["classes"].values()
    return {(row["family"], row["kind"]): row["module"] for row in classes if row["kind"]}


def built_in_class(family: str, kind: str) -> str | None:
    """The name of the class of a built-in kind, imported or not; None if the catalogue does not have the kind."""
    rows = catalogue()["classes"].items()
    return next((name for name, row in rows if (row["family"], row["kind"]) == (family, kind)), None)


def import_kind(family: str, kind: str) -> None:
    """Imports the module of a built-in kind; every module that may define a kind if the catalogue does not have it."""
    module = _modules().get((family, kind))
    if module is None:
        discover()
    else:
        importlib.import_module(module)


@cache
def discover(family: str | None = None) -> None:
    """Imports every file that may define a kind, of one family or of all, then the entry points of the group
    `anyformer.parts`. The catalogue says which files define a family, if it has all files."""
    if family is None or source_files() != catalogue()["files"]:
        for package in PACKAGES:
            root = importlib.import_module(package)
            for module in pkgutil.walk_packages(root.__path__, prefix=f"{package}."):
                importlib.import_module(module.name)
    else:
        for name in sorted({module for (other, _), module in _modules().items() if other == family}):
            importlib.import_module(name)
    for entry in entry_points(group=PARTS):
        try:
            entry.load()
        except Exception as error:  # a broken third-party package must not take ours down
            warnings.warn(f"the parts of {entry.value!r} could not be loaded: {error}", stacklevel=2)


def import_file(path: str | Path) -> None:
    """Imports one Python file that defines kinds of a user's own, as a module named after the file."""
    file = Path(path).resolve()
    if file in _IMPORTED:
        return
    if file.suffix != ".py" or not file.is_file():
        raise SpecError(f"--import {path}: expected an existing Python file (.py).")
    existing = None if file.stem in sys.modules else importlib.util.find_spec(file.stem)
    if file.stem in sys.modules or (existing is not None and existing.origin != str(file)):
        raise SpecError(f"--import {path}: a module called {file.stem!r} exists already. Rename the file.")
    sys.path.insert(0, str(file.parent))  # worker processes unpickle its classes by module name
    try:
        importlib.import_module(file.stem)
    except Exception as error:
        sys.path.remove(str(file.parent))
        reason = str(error) if isinstance(error, SpecError) else f"{type(error).__name__}: {error}"
        raise SpecError(f"--import {path}: {reason}") from error
    _IMPORTED.append(file)


def imported_files() -> tuple[str, ...]:
    """The files imported by `import_file`, for worker processes that must import them too."""
    return tuple(map(str, _IMPORTED))


def program() -> str:
    """The name of the program in a suggested command, with the `--import` options of this process."""
    here, files = Path.cwd(), map(Path, imported_files())
    shown = [file.relative_to(here) if file.is_relative_to(here) else file for file in files]
    return " ".join(["anyformer", *(f"--import {shlex.quote(str(file))}" for file in shown)])
