"""Imports every kind: of this package, of other installed packages, and of files that a user names.

Only code that is installed, or that the user names on the command line, is imported; never code that a recipe names.
"""

import importlib
import importlib.util
import pkgutil
import sys
import warnings
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from anyformer.errors import SpecError

PARTS = "anyformer.parts"
PACKAGES = (
    PARTS, "anyformer.models", "anyformer.data", "anyformer.objectives", "anyformer.optim", "anyformer.generation",
    "anyformer.evaluation.metrics", "anyformer.evaluation.yardsticks",
)  # fmt: skip
_IMPORTED: list[Path] = []


@cache
def discover() -> None:
    """Imports every file that may define a kind, then the entry points of the group `anyformer.parts`."""
    for package in PACKAGES:
        root = importlib.import_module(package)
        for module in pkgutil.walk_packages(root.__path__, prefix=f"{package}."):
            importlib.import_module(module.name)
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
