"""What is no input for a verb: one sentence on stderr, exit code 2 or 3, and no traceback."""

from pathlib import Path

import pytest
from tests.evaluation.runs import run_of

from anyformer.cli.main import main

Capture = pytest.CaptureFixture[str]
ASKING = (
    "generate",
    "classify",
    "embed",
    "fill",
    "evaluate",
    "search",
    "view",
    "chat",
    "export",
    "merge",
    "report",
    "shrink",
)
MORE = {"search": ["notes.txt", "x"], "view": ["x"], "shrink": ["--quantise", "int8"], "generate": ["x"]}
MORE |= {"classify": ["x"], "embed": ["x"], "fill": ["x"], "chat": ["x"]}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a cache of its own, a text and a recipe."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "notes.txt").write_text("a line of text\n" * 40)
    (tmp_path / "new").mkdir()
    for name in ("mine.toml", "new/recipe.toml"):
        (tmp_path / name).write_text('[model]\npreset = "small"\n')
    return tmp_path


def refusal(capsys: Capture, *words: str, codes: tuple[int, ...] = (2, 3)) -> str:
    code = main(list(words))
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert code in codes and not out, (words, code, out, err)
    assert len(lines) == 1 and "Traceback" not in err and "bug in anyformer" not in err, (words, err)
    return lines[0]


@pytest.mark.parametrize("verb", ASKING)
def test_a_recipe_that_was_not_trained_is_no_run(verb: str, home: Path, capsys: Capture) -> None:
    more = MORE.get(verb, [])
    assert "Train it first: anyformer train mine.toml" in refusal(capsys, verb, "mine.toml", *more)
    assert "anyformer train new/recipe.toml trains it" in refusal(capsys, verb, "new", *more)
    assert "is a preset, not a run. Train it first: anyformer train small" in refusal(capsys, verb, "small", *more)
    assert {file.name for file in home.iterdir()} <= {"mine.toml", "new", "notes.txt", "cache"}


def test_a_recipe_that_was_not_trained_cannot_be_resumed(home: Path, capsys: Capture) -> None:
    (home / "new" / "recipe.toml").write_text('[model]\npreset = "small"\n[data.source]\nkind = "python_topics"\n')
    assert "anyformer train new/recipe.toml trains it" in refusal(capsys, "train", "new", "--resume")


@pytest.mark.parametrize("verb", ["evaluate", "report"])
def test_the_recipe_of_a_run_names_its_run(verb: str, home: Path, capsys: Capture) -> None:
    run = run_of("language").folder
    assert f"Name the folder of the run: {run}" in refusal(capsys, verb, str(run / "recipe.toml"))


@pytest.mark.parametrize("verb", ["train", "compare", "scale", "data", "cost"])
def test_a_folder_of_runs_is_no_data(verb: str, home: Path, capsys: Capture) -> None:
    run = run_of("language").folder
    assert "is a folder of runs" in refusal(capsys, verb, str(run.parent), *(["--dry-run"] if verb == "train" else []))
