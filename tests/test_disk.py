"""Files on disk: numbered by step, and hashed."""

import subprocess
import sys
from pathlib import Path

from anyformer.disk import by_step, sha256, step_name


def test_steps_are_ordered_as_numbers_past_a_million(tmp_path: Path) -> None:
    for step in (1_000_200, 999_800, 20):
        (tmp_path / step_name(step)).mkdir()
    (tmp_path / "step-old").mkdir()  # not a number: not a checkpoint
    assert list(by_step(tmp_path)) == [20, 999_800, 1_000_200]
    assert by_step(tmp_path)[20] == tmp_path / "step-000020"


def test_files_are_ordered_by_step_too_and_a_missing_folder_is_empty(tmp_path: Path) -> None:
    for step in (1_000_000, 5):
        (tmp_path / f"{step_name(step)}.jsonl").write_text("")
    assert list(by_step(tmp_path, ".jsonl")) == [5, 1_000_000]
    assert by_step(tmp_path) == {} and by_step(tmp_path / "missing") == {}


def test_the_hash_of_a_file_is_that_of_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    assert sha256(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_steps_are_listed_without_torch() -> None:
    probe = "import sys, anyformer.disk; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe]).returncode == 0
