"""Every sequence model as interchangeable parts.

`__init__.pyi` lists the public names: every kind (`anyformer.Mamba`, `anyformer.Muon`) and what works on them. Each is
loaded on first use, so that importing the package is quick.
"""

import ast
import importlib
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

__version__ = "0.1.0"


def load_lazily(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose names are listed in its `__init__.pyi`. A name is imported on its
    first use, so that a module without torch can be imported from a package of modules with torch."""
    module = sys.modules[package]

    @cache
    def homes() -> dict[str, str]:
        """Name -> the module that defines it."""
        stub = ast.parse(Path(str(module.__file__)).with_suffix(".pyi").read_text(encoding="utf-8"))
        imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
        return {name.name: str(node.module) for node in imports for name in node.names}

    def load(name: str) -> Any:
        if name == "__all__":
            return sorted(homes())
        if name.startswith("__") or name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(homes()[name]), name)
        setattr(module, name, value)
        return value

    return load, lambda: sorted({*homes(), *vars(module)})


__getattr__, __dir__ = load_lazily(__name__)
