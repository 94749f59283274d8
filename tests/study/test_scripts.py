"""A script may call `compare` without a guard, unless the worker processes need its kinds."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.study.small import TINY
from tests.training.small import text

KINDS = """
import torch

Mine = af.torch_part("mine", lambda dim: torch.nn.Linear(dim, dim), reads="itself")
"""


def run(home: Path, before: str = "", guard: str = "") -> subprocess.CompletedProcess[str]:
    """A script that trains a model, and compares two with one seed each in two processes."""
    words = ["train.steps=1", *(word for word in TINY if not word.startswith(("study.", "train.steps")))]
    study = [*words, "study.seeds=1", "study.jobs=2", "study.tuning.trials=0", "study.tolerance=0.1"]
    calls = [
        f"af.train({text(home)!r}, *{words}, model='small', out='run', watcher=af.Watcher())",
        f"print(af.compare({text(home)!r}, *{study}, arms=['transformer', 'lstm'], out='study').verdict)",
    ]
    body = "\n".join([guard, *(f"    {call}" for call in calls)] if guard else calls)
    (home / "script.py").write_text(f"import anyformer as af\n{before}\n{body}\n")
    environment = {**os.environ, "XDG_CACHE_HOME": str(home / "cache")}
    return subprocess.run(
        [sys.executable, "script.py"], cwd=home, env=environment, capture_output=True, text=True, check=False
    )


def test_a_script_without_a_guard_trains_its_models_once(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("A look, not a verdict"), done.stderr
    assert done.stderr.count("reading the data") == 1


@pytest.mark.slow  # two studies in processes of their own
def test_a_script_that_defines_kinds_is_told_about_the_guard(tmp_path: Path) -> None:
    failed = run(tmp_path, KINDS).stderr
    assert "train was called in a worker process, which imports your script for the kinds that it defines" in failed
    assert 'Put the call under if __name__ == "__main__":' in failed
    assert "a worker process failed; its error is printed above. Checkpoints are saved." in failed
    for folder in ("run", "study"):
        shutil.rmtree(tmp_path / folder)
    guarded = run(tmp_path, KINDS, 'if __name__ == "__main__":')
    assert guarded.returncode == 0 and guarded.stdout.startswith("A look, not a verdict"), guarded.stderr
