"""Everything public can be imported from the top, lazily, and type checkers know it."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import anyformer

ROOT = Path(__file__).parents[1]


def test_the_stub_lists_every_kind() -> None:
    spec = importlib.util.spec_from_file_location("exports", ROOT / "tools" / "exports.py")
    assert spec is not None and spec.loader is not None
    exports = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(exports)
    assert exports.STUB.read_text() == exports.stub(), "Run: make rows"


def test_every_public_name_is_there() -> None:
    assert {"Mamba", "LSTM", "Rope", "Muon", "NextToken", "Sample", "train", "compare"} <= set(anyformer.__all__)
    assert all(getattr(anyformer, name).__name__ for name in anyformer.__all__)


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        ("anyformer", ["torch"]),
        ("anyformer.core.schema, anyformer.training.recipes.toml_layers, anyformer.study.arms", ["torch"]),
    ],
)
def test_what_takes_seconds_to_import_waits_for_its_first_use(modules: str, heavy: list[str]) -> None:
    """What `anyformer.run` leaves for later is in test_catalogue.py, in a process that imports torch anyway."""
    code = f"import sys, {modules}; anyformer.__all__; sys.exit(' '.join(set(sys.modules) & set({heavy})) or 0)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
