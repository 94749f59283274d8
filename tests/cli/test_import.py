"""`anyformer --import FILE VERB ...`: kinds of a user's own, in this process and in worker processes."""

import multiprocessing
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.training.small import TINY, text

from anyformer.cli.main import main
from anyformer.core import PartSpec, discovery
from anyformer.core.discovery import imported_files
from anyformer.study.running import RunTask, run_task

PART = """
from dataclasses import dataclass
from anyformer.core import Part, PartSpec, Site
from anyformer.parts.channels.identity import Identity

@dataclass(frozen=True, kw_only=True)
class Outside(PartSpec, kind="outside"):
    \"\"\"Does nothing.\"\"\"
    def build(self, site: Site) -> Part:
        return Identity().build(site)
"""


@pytest.fixture
def part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(discovery, "_IMPORTED", [])
    file = tmp_path / "outside_part.py"
    file.write_text(PART)
    yield file
    PartSpec.kinds.pop("outside", None)
    sys.modules.pop("outside_part", None)


def test_a_file_of_ones_own_is_a_kind_for_every_verb(part: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--import", str(part), "parts", "outside"]) == 0
    assert "outside" in capsys.readouterr().out
    assert imported_files() == (str(part.resolve()),)


def test_suggested_commands_import_the_file_too(
    part: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert main(["--import", part.name, "train", text(tmp_path), *TINY, "--out", "run"]) == 0
    suggestions = [line for line in capsys.readouterr().out.splitlines() if line.startswith("next: ")]
    assert suggestions and all(line.startswith("next: anyformer --import outside_part.py ") for line in suggestions)
    assert "anyformer --import outside_part.py train run --resume" in Path("run/report.html").read_text()


def test_two_files_of_one_folder_can_be_imported(part: Path) -> None:
    other = part.with_name("outside_other.py")
    other.write_text(part.read_text().replace("Outside", "Other").replace('"outside"', '"other_outside"'))
    try:
        assert main(["--import", str(part), "--import", str(other), "parts", "other_outside"]) == 0
    finally:
        PartSpec.kinds.pop("other_outside", None)
        sys.modules.pop("outside_other", None)


def test_a_recipe_never_imports_it(part: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "small", "model.stack.blocks.layer.branches.0.part.kind=outside"]) == 2
    assert "anyformer --import FILE" in " ".join(capsys.readouterr().err.split())


def test_a_file_whose_kind_is_taken_is_told_what_to_rename(part: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part.write_text(PART.replace('"outside"', '"attention"'))
    assert main(["--import", str(part), "parts", "attention"]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert f"Outside ({part}): the kind 'attention' is taken by Attention (anyformer)." in error
    assert "Choose another kind for Outside." in error


@pytest.mark.parametrize("name", ["missing.py", "notes.txt", "json.py"])
def test_a_file_that_cannot_be_imported_is_named(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if name != "missing.py":
        (tmp_path / name).write_text("")
    assert main(["--import", str(tmp_path / name), "parts", "rope"]) == 2
    assert name in capsys.readouterr().err


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_worker_process_imports_it_too(start: str, part: Path, tmp_path: Path) -> None:
    """Studies spawn their workers, which takes seconds to import torch; a fork does not know the file either."""
    task = RunTask(tmp_path, "arm", rate=1e-3, seed=0, threads=1, imports=(str(part),))
    with multiprocessing.get_context(start).Pool(1) as pool:
        assert pool.apply(_kinds_after, (task,)) == "Outside"


def _kinds_after(task: RunTask) -> str:
    with suppress(Exception):  # there is no study in that folder
        run_task(task)
    return PartSpec.kinds["outside"].__name__
