"""Asking for help, for the version, or for something that is not there never waits for torch."""

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROBE = """
import sys
import anyformer.cli.main as cli
try:
    code = cli.main(sys.argv[1:])
except SystemExit as stop:
    code = stop.code
assert "torch" not in sys.modules, "torch was imported"
sys.exit(code)
"""


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True)


def test_help_is_answered_without_torch() -> None:
    result = python("-c", PROBE, "--help")
    assert result.returncode == 0, result.stderr
    assert "cost" in result.stdout


def test_version_is_answered_without_torch() -> None:
    result = python("-c", PROBE, "--version")
    assert result.returncode == 0, result.stderr
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] in result.stdout


def test_an_unknown_verb_gets_the_nearest_name_without_torch() -> None:
    result = python("-c", PROBE, "cots", "small")
    assert result.returncode == 2, result.stderr
    assert "cost" in result.stderr


def test_a_wrong_option_is_refused_without_torch() -> None:
    result = python("-c", PROBE, "cost", "small", "--no-such-option")
    assert result.returncode == 2, result.stderr
    assert "--no-such-option" in result.stderr


def test_the_package_runs_as_a_module() -> None:
    result = python("-m", "anyformer", "--help")
    assert result.returncode == 0, result.stderr
    assert "cost" in result.stdout


def test_the_package_is_imported_before_a_ctrl_c_could_be_missed() -> None:
    """Its handler is installed after `anyformer` is imported, so this import takes as little as possible."""
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r}); import anyformer; print(*sys.modules)"
    result = python("-S", "-c", code)
    assert result.returncode == 0, result.stderr
    assert not {"ast", "typing", "pathlib", "dataclasses", "contextlib"} & {*result.stdout.split()}
