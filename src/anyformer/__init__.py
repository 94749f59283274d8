"""Every sequence model as interchangeable parts.

`__init__.pyi` lists the public names: every kind (`anyformer.Mamba`, `anyformer.Muon`) and what works on them. Each is
loaded on first use, so that importing the package is quick.
"""

import ast
import importlib
from functools import cache
from pathlib import Path
from typing import Any

__version__ = "0.1.0"


@cache
def _modules() -> dict[str, str]:
    """Public name -> the module that defines it."""
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {name.name: str(node.module) for node in imports for name in node.names}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(_modules())
    if name.startswith("__") or name not in _modules():
        raise AttributeError(f"module 'anyformer' has no attribute {name!r}")
    return getattr(importlib.import_module(_modules()[name]), name)


def __dir__() -> list[str]:
    return sorted([*_modules(), "__version__"])
