"""`anyformer compare` as a user meets it: the real command, its words and its exit codes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.study.small import PAIR, TINY, measured
from tests.training.small import text

from anyformer.cli.main import main
from anyformer.study import Results
from anyformer.study.study_folder import StudyFolder

Capture = pytest.CaptureFixture[str]
COMMAND = (sys.executable, "-m", "anyformer", "compare")


def start(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.Popen(
        [*COMMAND, *arguments], cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


@pytest.mark.row("NAR-00")
def test_the_verdict_comes_first_then_the_table_then_what_to_type(home: Path, capsys: Capture) -> None:
    options = ["--arms", "transformer,lstm", "--match", "flops", "--seeds", "2", "--out", "found"]
    assert main(["compare", text(home), *TINY, "train.steps=2", *options]) == 0
    out = capsys.readouterr().out
    verdict, heading, report = (out.index(word) for word in ("A look, not a verdict", "difference (95 %)", "report: "))
    assert verdict < heading < report and "flops off" in out and "seeds needed" not in out
    assert re.findall(r"^\[ *(\d+)/4\]", out, re.MULTILINE) == ["1", "2", "3", "4"]
    assert main(["compare", "found", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["match"] == "flops" and [arm["name"] for arm in facts["arms"]] == ["transformer", "lstm"]
    assert set(facts["arms"][1]["difference"]) >= {"mean", "low", "high", "p"}
    assert main(["report", "found", "--out", "notes/page.md"]) == 0
    assert "A look" in (home / "notes" / "page.md").read_text()
    assert main(["evaluate", "found"]) == 2
    assert "is a study of several runs, not a run. Its runs: found/lstm/seed-0" in capsys.readouterr().err
    assert main(["compare", "found", "--arms", "lstmm"]) == 2
    assert "Did you mean 'lstm'?" in capsys.readouterr().err
    check_a_failed_run_is_in_the_table(home, capsys)
    check_a_study_is_rehearsed_from_its_folder_and_from_a_pack(capsys)


def check_a_study_is_rehearsed_from_its_folder_and_from_a_pack(capsys: Capture) -> None:
    assert main(["compare", "found", "--pack", "nowhere/found.tgz"]) == 2
    assert "there is no folder 'nowhere'. Make it first: mkdir -p nowhere" in capsys.readouterr().err
    assert main(["compare", "found", "--pack", "found.tgz"]) == 0
    capsys.readouterr()
    for target in ("found", "found.tgz"):
        assert main(["compare", target, "--dry-run"]) == 0
        assert "would train 2 arms x 3 seeds" in capsys.readouterr().out
    assert main(["report", "found.tgz"]) == 0
    assert "written: runs/found/report.html" in capsys.readouterr().out
    for folder, what in (("found/lstm/seed-0", "a run"), ("found", "a study")):
        assert main(["data", folder]) == 3
        complaint = capsys.readouterr().err
        assert f"{folder}: is the folder of {what}, not of data. Name its recipe instead: {folder}/" in complaint


def check_a_failed_run_is_in_the_table(home: Path, capsys: Capture) -> None:
    """Adds a seed to a study of two, of which one run fails."""
    (home / "found" / "lstm" / "seed-2").write_text("in the way")
    capsys.readouterr()
    assert main(["compare", "found", "--seeds", "3"]) == 0
    out = capsys.readouterr().out
    assert "2 of 3, 1 failed" in out and "lstm 1 of 3" in out and "exists already" in out


def test_what_is_surprising_about_the_data_is_said_once(home: Path, capsys: Capture) -> None:
    rows = [json.dumps({"text": f"the cat number {n} runs over the wall"}) for n in range(100)]
    (home / "data").mkdir()
    (home / "data" / "train.jsonl").write_text("\n".join(rows))
    (home / "data" / "valid.jsonl").write_text("\n".join(rows[90:]))
    controls = "study.controls.same={alike=['transformer','lstm'],within=9.0}"
    words = ["compare", "data", *TINY, controls, "--seeds", "1", "--minutes", "0", "--out", "found"]
    assert main(words) == 75  # stopped before the first run
    assert capsys.readouterr().out.count("copies of validation or test texts, and left out") == 1


def test_runs_of_an_arm_that_fail_for_one_reason_share_a_line(home: Path, capsys: Capture) -> None:
    arms = ("study.arms=['base', 'wild']", "arms.wild.optimizer.lr=1e15", "study.tuning.trials=0")
    assert main(["compare", text(home), *TINY, *arms, "train.steps=8", "--seeds", "2", "--out", "found"]) == 0
    progress, _, summary = capsys.readouterr().out.partition("difference (95 %)")
    assert progress.count("not finite") == 1 and "wild seed 1: failed for the same reason" in progress
    assert summary.count("not finite") == 1 and "found/wild/seed-0 and 1 more of this arm: failed: " in summary
    page = Path("found/report.md").read_text()
    assert page.count("not finite") == 1 and "- wild seeds 0, 1: failed " in page


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--arms", "transfomer,lstm"], 2, "Did you mean 'transformer'"),
        (["--match", "size"], 2, "--match"),
        (["--seeds", "0"], 2, "--seeds"),
        (["study.sedes=3"], 2, "Did you mean 'seeds'"),
        (["arms.x.model.dimm=3"], 2, "model.dimm"),
        (["--match", "state", "--arms", "transformer,lstm", "study.tolerance=0.0001"], 2, "comes no nearer than"),
        (["arms.x.data.context=16"], 2, "Arms must read the same data"),
    ],
)
def test_what_is_wrong_is_named_with_the_right_code(
    home: Path, capsys: Capture, arguments: list[str], code: int, words: str
) -> None:
    assert main(["compare", text(home), *TINY, *arguments, "--out", "found"]) == code
    err = capsys.readouterr().err
    assert words in err and "Traceback" not in err
    assert not (home / "found" / "study.toml").exists()


def test_a_study_is_not_trained_as_if_it_were_one_model(home: Path, capsys: Capture) -> None:
    (home / "some.toml").write_text('[model]\npreset = "small"\n[study]\nseeds = 2\n')
    assert main(["train", "some.toml"]) == 2
    assert "anyformer compare" in capsys.readouterr().err


def test_a_rehearsal_shows_the_sizes_and_trains_nothing(home: Path, capsys: Capture) -> None:
    assert main(["compare", text(home), *TINY, PAIR, "--out", "found", "--dry-run"]) == 0
    assert "would train 2 arms x 8 seeds" in capsys.readouterr().out and not (home / "found").exists()


def test_a_rehearsal_prices_all_budgets_and_controls(home: Path, capsys: Capture) -> None:
    known = "study.controls.known={better='lstm', than='transformer', changes=['train.steps=10']}"
    words = (*TINY, PAIR, known, "study.budgets=[10, 30]", "study.seeds=2", "study.tuning.trials=0")
    assert main(["compare", text(home), *words, "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    tokens = {
        line.split(":")[0].strip(): line.split(" tokens, ")[0].rsplit(": ")[-1] for line in lines if " tokens, " in line
    }
    assert len(tokens) == 4 and tokens["10 steps"] == tokens["control known"] != tokens["30 steps"]
    assert lines[-1].startswith("in all ") and lines[-1].endswith("Nothing was done.")


LONG = (*TINY, PAIR, "study.jobs=2", "study.seeds=3", "train.steps=30")


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study of two processes that nobody disturbed."""
    folder = tmp_path_factory.mktemp("busy")
    start(folder, text(folder), *LONG, "--out", "calm").communicate(timeout=300)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_stopped_with_its_processes_at_work_it_goes_on_to_the_same_table(busy: Path, number: int) -> None:
    name = f"stopped-{number}"
    process = start(busy, text(busy), *LONG, "--out", name)
    while not list(busy.glob(f"{name}/*/seed-1/checkpoints/step-*")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    if number != signal.SIGKILL:
        assert process.returncode == 128 + number and f"Go on with: anyformer compare {name}" in err
    again = start(busy, name)
    again.communicate(timeout=300)
    calm, stopped = (Results(StudyFolder.open(busy / folder)) for folder in ("calm", name))
    assert again.returncode == 0 and measured(calm) == measured(stopped)
