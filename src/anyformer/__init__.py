"""Every sequence model as interchangeable parts.

`__init__.pyi` lists the public names: every kind (`anyformer.Mamba`, `anyformer.Muon`) and what works on them. Each is
loaded on first use, so that importing the package is quick.
"""

from __future__ import annotations

import importlib
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not imported: a command can answer a Ctrl-C only when this package has been imported
    from collections.abc import Callable
    from typing import Any

__version__ = "0.1.0"


def load_lazily(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose names are listed in its `__init__.pyi`. A name is imported on its
    first use, so that a module without torch can be imported from a package of modules with torch."""
    module = sys.modules[package]

    def homes() -> dict[str, str]:
        """Name -> the module that defines it."""
        known: dict[str, str] = importlib.import_module("anyformer.public_names").homes(package)
        return known

    def load(name: str) -> Any:
        if name == "__all__":
            return sorted(homes())
        if name.startswith("__") or name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=module)
        value = getattr(importlib.import_module(homes()[name]), name)
        setattr(module, name, value)
        return value

    return load, lambda: sorted({*homes(), *vars(module)})


__getattr__, __dir__ = load_lazily(__name__)
