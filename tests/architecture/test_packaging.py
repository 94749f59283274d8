"""What the source distribution holds."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_source_distribution_holds_every_folder_that_tests_read() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
    text = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("*.py"))
    folders = {item.name for item in ROOT.iterdir() if item.is_dir() and not item.name.startswith(".")}
    folders -= {"build", "dist", "runs"}  # what is made here, not kept
    needed = {name for name in folders if re.search(rf'[/(] "{name}"|^from {name}\b', text, re.MULTILINE)}
    assert {"benchmarks", "recipes", "tests"} <= needed
    assert needed <= {path.removeprefix("/") for path in build["targets"]["sdist"]["include"]}
