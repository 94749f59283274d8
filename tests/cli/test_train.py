"""`anyformer train` as a user meets it: its words and its exit codes."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from tests.training.small import TINY, facts, text

from anyformer.cli.main import enter, main

Capture = pytest.CaptureFixture[str]


def forked(*arguments: str) -> int:
    """The command in a process that is forked from this warm one, which saves it the imports; its number.

    What it says goes to the file `said`.
    """
    child = os.fork()
    if child == 0:
        code: str | int | None = 99
        sys.argv = ["anyformer", "train", *arguments]
        try:
            with open("said", "w", buffering=1) as said, redirect_stdout(said), redirect_stderr(said):
                enter()
        except SystemExit as stop:
            code = stop.code
        finally:
            os._exit(int(code or 0))
    return child


def wait_for_line(child: int, pattern: str) -> None:
    while not (os.path.exists("said") and re.search(pattern, Path("said").read_text(), re.MULTILINE)):
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "it ended before"
        time.sleep(0.01)


def ended(child: int) -> tuple[int, str]:
    """The exit code of a forked command, and all it said."""
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    said = Path("said").read_text()
    assert "Traceback" not in said
    return code, said


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_a_path_is_enough_and_the_same_words_go_on_after_an_interruption(home: Path, capsys: Capture) -> None:
    file, long = text(home), ("train.steps=30", "evaluate.every=10", "checkpoint.every=10")
    assert main(["train", file, *TINY, *long, "--out", "calm"]) == 0
    assert "done: calm" in capsys.readouterr().out
    child = forked(file, *TINY, *long, "--out", "stopped")
    wait_for_line(child, r"^step +5")
    os.kill(child, signal.SIGINT)
    code, said = ended(child)
    assert code == 130
    step = int(re.search(r"saved at step (\d+)\. Go on with: anyformer train stopped --resume", said)[1])  # type: ignore[index]
    assert main(["train", "stopped", "--resume"]) == 0
    assert f"resuming after step {step}" in capsys.readouterr().out
    assert facts(home / "stopped") == facts(home / "calm")
    assert main(["train", "stopped", "--resume"]) == 0
    assert "already complete" in capsys.readouterr().out


def test_an_output_that_is_closed_saves_and_exits_with_141(home: Path) -> None:
    command = [sys.executable, "-m", "anyformer", "train", text(home), *TINY, "train.steps=400", "--out", "run"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("step"):
            pass
        process.stdout.close()
        assert process.wait() == 141
    assert (home / "run" / "LATEST").read_text().strip() and '"step"' in (home / "run" / "events.log").read_text()


def test_an_output_that_is_closed_before_the_first_step_is_no_success(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def closed(*_: object, **__: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("anyformer.run.train", closed)
    assert main(["train", text(home), *TINY, "--out", "run"]) == 141
    assert "closed before the first step" in capsys.readouterr().err


def test_sigterm_saves_and_exits_with_143(home: Path) -> None:
    child = forked(text(home), *TINY, "train.steps=4000", "--out", "run")
    wait_for_line(child, r"^step +3")
    os.kill(child, signal.SIGTERM)
    code, said = ended(child)
    assert code == 143 and "--resume" in said
    assert (home / "run" / "LATEST").exists()


def test_a_second_ctrl_c_stops_at_once(home: Path) -> None:
    long = ("train.batch_tokens=200000", "train.micro_batch=32")
    child = forked(text(home), *TINY, *long, "--out", "run")
    wait_for_line(child, r"^predicted about")  # whose first step takes seconds
    time.sleep(0.5)
    os.kill(child, signal.SIGINT)
    time.sleep(0.2)
    os.kill(child, signal.SIGINT)
    code, said = ended(child)
    assert code == 130 and "saved at step" not in said


def test_a_killed_worker_ends_the_run_with_its_checkpoint_intact(home: Path) -> None:
    child = forked(text(home), *TINY, "train.steps=4000", "train.workers=1", "--out", "run")
    wait_for_line(child, r"^step +4")
    children = subprocess.run(["pgrep", "-P", str(child)], capture_output=True, text=True).stdout.split()
    os.kill(int(children[0]), signal.SIGKILL)
    code, said = ended(child)
    assert code == 1 and "worker" in said and "killed" in said
    assert (home / "run" / "LATEST").read_text().startswith("step-")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["optimizer.learning_rate=1"], 2, "Did you mean 'lr'?"),
        (["train.lr=1"], 2, "lr belongs to optimizer: write optimizer.lr"),
        (["train.steps=many", "model.stack.depth=2.5"], 2, "train.steps: expected a whole number"),
        (["train.steps=0"], 2, "train.steps: must be at least 1"),
        (["optimizer.lr=-1"], 2, "optimizer.lr: must be above 0"),
        (["train.device=cuda"], 2, "there is none on this machine"),
        (["train.precision=fp16"], 2, "fp16 is for GPUs"),
        (["optimizer.kind=os.system"], 2, "os.system"),
        (["model.dim=65536", "model.stack.depth=8"], 4, "GiB are free"),
        (["optimizer.lr=1e14", "train.steps=40"], 1, "optimizer.lr=1e+14"),
        (["data.source.path=nowhere.txt"], 3, "nowhere.txt"),
        (["objective.kind=masked_words"], 2, "Use an encoder"),
        (["model.kind=adamw"], 2, "model.kind: no ModelSpec is called 'adamw'. Known: "),
        (["model.kind=null"], 2, "model.kind: expected a string, got None."),
        (["model.vocab=100"], 3, "ids outside the vocabulary"),
        (["data.context=4096"], 2, "train.batch_tokens=256"),
    ],
)
def test_what_is_wrong_is_named_with_the_right_code(
    home: Path, capsys: Capture, arguments: list[str], code: int, words: str
) -> None:
    found = main(["train", text(home), *TINY, *arguments, "--out", "run"])
    err = capsys.readouterr().err
    assert found == code and words in err and "Traceback" not in err, err
    assert code == 1 or not (home / "run").exists()  # nothing half made is left


def test_all_errors_come_at_once_with_their_places(home: Path, capsys: Capture) -> None:
    code = main(["train", text(home), "train.steps=many", "model.dim=2.5", "train.clip=-1", "evaluate.evry=3"])
    err = capsys.readouterr().err
    assert code == 2 and len(err.strip().splitlines()) == 4
    assert all(key in err for key in ("train.steps", "model.dim", "train.clip", "evaluate.evry"))


def test_json_is_a_line_for_each_logged_step_and_a_summary(home: Path, capsys: Capture) -> None:
    assert main(["train", text(home), *TINY, "train.steps=4", "--out", "run", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [1, 2, 3, 4]
    assert set(lines[-1]) == {"run", "step", "tokens", "train_loss", "valid_loss", "params", "wall_s"}


def test_a_rehearsal_does_nothing(home: Path, capsys: Capture) -> None:
    assert main(["train", text(home), *TINY, "--out", "run", "--dry-run"]) == 0
    assert "would train" in capsys.readouterr().out and not (home / "run").exists()


def test_a_full_disk_is_a_lack_of_a_resource_and_loses_nothing(home: Path, capsys: Capture) -> None:
    with pytest.MonkeyPatch.context() as patch:
        real, calls = os.fsync, []

        def full(handle: int) -> None:
            calls.append(handle)
            if len(calls) > 20:
                raise OSError(errno.ENOSPC, "No space left on device")
            real(handle)

        patch.setattr(os, "fsync", full)
        assert main(["train", text(home), *TINY, "--out", "run"]) == 4
    assert "the disk is full" in capsys.readouterr().err
    assert main(["train", "run", "--resume", "--quiet"]) == 0
