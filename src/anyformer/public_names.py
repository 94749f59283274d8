"""The modules that define the public names of a package, read from its `__init__.pyi`."""

import ast
import sys
from functools import cache
from pathlib import Path


@cache
def homes(package: str) -> dict[str, str]:
    """Public name -> the module that defines it."""
    stub = Path(str(sys.modules[package].__file__)).with_suffix(".pyi").read_text(encoding="utf-8")
    imports = [node for node in ast.parse(stub).body if isinstance(node, ast.ImportFrom)]
    return {name.name: str(node.module) for node in imports for name in node.names}
