"""The direction of the layers, as import-linter sees it (the contracts are in pyproject.toml)."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINT = "from importlinter.cli import lint_imports_command as lint; lint()"


def lint(contract: str) -> subprocess.CompletedProcess[str]:
    # in a process of its own: the linter changes sys.path
    command = [sys.executable, "-c", LINT, "--no-cache", "--no-logo", "--contract", contract]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_a_module_imports_only_from_lower_layers() -> None:
    result = lint("layers")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("contract", ["parts", "leaves"])
def test_parts_import_leaf_families_but_not_each_other(contract: str) -> None:
    result = lint(contract)
    assert result.returncode == 0, result.stdout + result.stderr
