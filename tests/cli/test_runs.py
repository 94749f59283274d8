"""`anyformer runs`: a table without torch, within a second, whatever the folders hold."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from tests.reporting.folders import make, trained, validated, whole

from anyformer.cli.main import main
from anyformer.reporting.run_files import RunFiles

Capture = pytest.CaptureFixture[str]
LIGHT = """
import sys
from anyformer.cli.main import main
code = main(sys.argv[1:])
assert "torch" not in sys.modules, "torch was imported"
assert "numpy" not in sys.modules, "numpy was imported"
sys.exit(code)
"""


def listed(capsys: Capture, folder: Path) -> dict[str, Any]:
    assert main(["runs", str(folder), "--json"]) == 0
    return {Path(it["run"]).name: it for it in json.loads(capsys.readouterr().out)}


def test_every_run_has_a_line_with_its_losses_and_its_state(tmp_path: Path, capsys: Capture) -> None:
    whole(tmp_path / "done")
    make(tmp_path / "deep" / "half", [trained(10, 4.0), validated(10, 3.5), trained(12, float("nan"))])
    found = listed(capsys, tmp_path)
    assert found["done"] | {"age_s": 0} == {
        "run": str(tmp_path / "done"), "model": "decoder", "params": None, "objective": "next_token", "data": "text",
        "step": 40, "steps": 40, "train_loss": 3.0, "valid_loss": 3.0, "best_valid_loss": 3.0, "state": "complete",
        "age_s": 0,
    }  # fmt: skip
    half = found["half"]
    assert (half["step"], half["train_loss"], half["best_valid_loss"]) == (12, None, 3.5)
    assert half["state"] == "interrupted"


def test_a_run_that_was_killed_after_its_last_step_is_not_called_interrupted(tmp_path: Path, capsys: Capture) -> None:
    make(tmp_path / "run", [trained(10, 4.0), trained(40, 3.0)])
    assert main(["runs", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "40/40" in out and "stopped before its last save" in out


def test_a_locked_run_is_running(tmp_path: Path, capsys: Capture) -> None:
    folder = whole(tmp_path / "run")
    with FileLock(folder / ".lock"):
        assert listed(capsys, tmp_path)["run"]["state"] == "running"
    assert listed(capsys, tmp_path)["run"]["state"] == "complete"


def test_a_lock_file_that_nobody_holds_and_a_missing_one_are_no_lock(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    assert not RunFiles(tmp_path).locked and not RunFiles(tmp_path / "missing").locked
    assert not (tmp_path / "missing").exists()  # reading creates nothing


def test_two_hundred_runs_are_listed_without_torch(tmp_path: Path) -> None:
    for number in range(200):
        make(tmp_path / f"run-{number}", [trained(step, 3.0) for step in range(1, 40)], complete=True)
    result = subprocess.run([sys.executable, "-c", LIGHT, "runs", str(tmp_path)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("complete") == 200


def test_broken_folders_do_not_hide_the_others(tmp_path: Path, capsys: Capture) -> None:
    whole(tmp_path / "good")
    bad = make(tmp_path / "bad", [])
    (bad / "recipe.toml").write_text("model = [")
    (bad / "metrics.jsonl").write_bytes(b"\x00\xff{")
    found = listed(capsys, tmp_path)
    assert found["bad"]["state"] == "unreadable" and found["good"]["state"] == "complete"


def test_no_runs_yet_is_no_error_and_a_wrong_folder_is_one(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["runs"]) == 0
    assert "anyformer train small" in capsys.readouterr().out
    assert main(["runs", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err


@pytest.mark.parametrize("columns", ["0", "60", "80", "200"])
def test_every_run_has_one_line_however_narrow_the_terminal_is(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    whole(tmp_path / "comparison" / "a-transformer" / "seed-5")
    assert main(["runs", str(tmp_path)]) == 0
    shown, notes = capsys.readouterr()
    assert "comparison/a-transformer/seed-5" in shown and ("not shown in" in notes) == (columns != "200")
    assert columns != "60" or all(name in notes for name in ("model", "params", "task"))


def test_a_study_is_listed_below_its_runs(tmp_path: Path, capsys: Capture) -> None:
    for name in ("seed-0", "seed-0-small", "mine"):  # the last two were made by shrink
        whole(tmp_path / "cmp" / "lstm" / name)
    (tmp_path / "cmp" / "study.toml").write_text("")
    assert main(["runs", str(tmp_path)]) == 0
    assert f"study {tmp_path}/cmp: 1 run, 1 complete. Its table: anyformer report" in capsys.readouterr().out


def test_the_step_is_the_saved_one_where_that_is_later_than_the_logged_one(tmp_path: Path, capsys: Capture) -> None:
    run = make(tmp_path / "run", [trained(40, 3.0)], complete=False)
    (state,) = run.glob("checkpoints/*/state.json")
    state.write_text(json.dumps({"complete": False, "progress": {"step": 49}}))
    assert listed(capsys, tmp_path)["run"]["step"] == 49
