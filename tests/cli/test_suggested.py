"""Every command that a verb suggests succeeds as it is printed; commands that train get a smaller model appended."""

import re
import shlex
from pathlib import Path

import pytest
from tests.study.small import PAIR
from tests.study.small import TINY as STUDY
from tests.training.small import text
from tests.training.test_chat_runs import chat_file

from anyformer.cli.main import main

Capture = pytest.CaptureFixture[str]
COMMAND = re.compile(r"(?:next: |Go on with: |Start one: |Its table: |`)(anyformer .*?)(?:`|\s{3}|$)", re.MULTILINE)
SMALL = (
    "model.dim=16", "model.stack.depth=1", "data.context=32", "train.batch_tokens=256", "train.steps=1",
    "evaluate.batches=1", "sample.tokens=2", "train.device=cpu", "train.compile=false",
)  # fmt: skip


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a cache of its own and a terminal that does not wrap."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "400")
    return tmp_path


def suggested(capsys: Capture, *arguments: str, code: int = 0) -> list[str]:
    """Runs a command and returns the commands that its output suggests."""
    capsys.readouterr()
    assert main([*arguments]) == code
    output = capsys.readouterr()
    return list(dict.fromkeys(COMMAND.findall(f"{output.out}\n{output.err}")))


def succeeds(command: str, *more: str) -> bool:
    return main([*shlex.split(command)[1:], *more]) == 0


@pytest.mark.parametrize("task", ["generate", "classify", "chat", pytest.param("fill", marks=pytest.mark.slow)])
def test_what_train_suggests_succeeds(home: Path, capsys: Capture, task: str) -> None:
    target: dict[str, tuple[str, ...]] = {
        "generate": (text(home),),
        "fill": (
            "small-encoder",
            "objective.kind=masked_words",
            "data.source.kind=text",
            f"data.source.path={text(home)}",
        ),
        "classify": (labelled(home), "model.embedding.buckets=1024"),
        "chat": (chat_file(home),),
    }
    commands = suggested(capsys, "train", *target[task], *SMALL, "data.tokenizer.kind=byte", "--out", "run")
    assert [command.split()[1] for command in commands] == [task, "evaluate", "runs", "config"]
    assert all(map(succeeds, commands))


def labelled(home: Path) -> str:
    file = home / "labelled.csv"
    rows = [f"the {'red' if n % 2 else 'blue'} one number {n},{'warm' if n % 2 else 'cold'}" for n in range(60)]
    file.write_text("\n".join(["text,label", *rows]))
    return str(file)


def test_what_new_and_runs_suggest_succeeds(capsys: Capture) -> None:
    (recipe,) = suggested(capsys, "new", "diary")
    (first,) = suggested(capsys, "runs")
    assert succeeds(recipe, *SMALL) and succeeds(first, *SMALL, "data.tokenizer.kind=byte")


@pytest.mark.slow
def test_what_compare_and_its_report_suggest_succeeds(home: Path, capsys: Capture) -> None:
    words = ("compare", text(home), *STUDY, PAIR, "train.steps=1", "--seeds", "1", "--out", "runs/study")
    (go_on,) = suggested(capsys, *words, "--minutes", "0", code=75)
    commands = suggested(capsys, *shlex.split(go_on)[1:])
    verbs = [command.split()[1:2] + command.split()[3:4] for command in commands]
    assert verbs == [["compare", "--seeds"], ["view", '"some'], ["compare", "--out"]]
    (table,) = suggested(capsys, "runs")
    page = Path("runs/study/report.md").read_text()
    again = [line for line in page.splitlines() if line.startswith("anyformer ")]
    assert table.split()[1] == "report" and len(again) == 1
    unique = dict.fromkeys([command.replace("study-again", "study-2") for command in commands] + [table, *again])
    assert all(succeeds(command) for command in unique)


def test_what_the_report_of_a_run_suggests_succeeds(home: Path, capsys: Capture) -> None:
    assert main(["train", text(home), *SMALL, "data.tokenizer.kind=byte", "--out", "run", "-q"]) == 0
    page = Path("run/report.html").read_text()
    commands = re.findall(r"anyformer train run\S* --\w+(?: run-again)?", page)
    assert {shlex.split(command)[2] for command in commands} <= {"run", "run/recipe.toml"} and commands
    assert all(succeeds(command) for command in dict.fromkeys(commands))
