"""Finds every kind: the package's own, then those that other installed packages offer.

Only code that is installed is imported, never a module because a file names it.
"""

import importlib
import pkgutil
import warnings
from functools import cache
from importlib.metadata import entry_points

PARTS = "anyformer.parts"
PACKAGES = (
    PARTS,
    "anyformer.models",
    "anyformer.data",
    "anyformer.objectives",
    "anyformer.optim",
    "anyformer.generation",
    "anyformer.evaluation.metrics",
)


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
