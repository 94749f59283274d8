"""Everything public can be imported from the top, lazily, and type checkers know it."""

import importlib.util
import subprocess
import sys
from pathlib import Path

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


def test_importing_the_package_loads_no_torch() -> None:
    code = "import sys, anyformer; anyformer.__all__; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
