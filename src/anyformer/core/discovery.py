"""Finds every kind: the package's own, then those that other installed packages offer.

Only code that is installed is imported, never a module because a file names it.
"""

import importlib
import pkgutil
import warnings
from functools import cache
from importlib.metadata import entry_points

PARTS, MODELS = "anyformer.parts", "anyformer.models"


@cache
def discover() -> None:
    """Imports every file of `anyformer.parts` and the models, then the entry points of the group `anyformer.parts`."""
    root = importlib.import_module(PARTS)
    for module in pkgutil.walk_packages(root.__path__, prefix=f"{PARTS}."):
        importlib.import_module(module.name)
    importlib.import_module(MODELS)
    for entry in entry_points(group=PARTS):
        try:
            entry.load()
        except Exception as error:  # a broken third-party package must not take ours down
            warnings.warn(f"the parts of {entry.value!r} could not be loaded: {error}", stacklevel=2)
