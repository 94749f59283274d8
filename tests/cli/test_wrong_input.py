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
    assert "Train it first: anyformer train new/recipe.toml" in refusal(capsys, verb, "new", *more)
    assert "is a preset, not a run. Train it first: anyformer train small" in refusal(capsys, verb, "small", *more)
    assert {file.name for file in home.iterdir()} <= {"mine.toml", "new", "notes.txt", "cache"}


def test_a_recipe_that_does_not_exist_is_no_run(home: Path, capsys: Capture) -> None:
    assert "missing.toml: there is no such run" in refusal(capsys, "generate", "missing.toml", "x")


def test_a_recipe_that_was_not_trained_cannot_be_resumed(home: Path, capsys: Capture) -> None:
    (home / "new" / "recipe.toml").write_text('[model]\npreset = "small"\n[data.source]\nkind = "python_topics"\n')
    assert "Train it first: anyformer train new/recipe.toml" in refusal(capsys, "train", "new", "--resume")


@pytest.mark.parametrize("verb", ["evaluate", "report"])
def test_the_recipe_of_a_run_names_its_run(verb: str, home: Path, capsys: Capture) -> None:
    run = run_of("language").folder
    assert f"Name the folder of the run: {run}" in refusal(capsys, verb, str(run / "recipe.toml"))


@pytest.mark.parametrize("verb", ["train", "compare", "scale", "data", "cost"])
def test_a_folder_of_runs_is_no_data(verb: str, home: Path, capsys: Capture) -> None:
    run = run_of("language").folder
    assert "is a folder of runs" in refusal(capsys, verb, str(run.parent), *(["--dry-run"] if verb == "train" else []))


def test_a_run_that_learned_no_conversations_says_so(home: Path, capsys: Capture) -> None:
    run = run_of("language").folder
    assert main(["chat", str(run), "hello", "--max-new", "2"]) == 0
    assert "learned no conversations: it may go on with the text" in capsys.readouterr().err


FILES = ["missing.txt", "empty.txt", "binary.dat", "empty"]
ON_DATA = [[verb, "--dry-run"] for verb in ("train", "compare", "scale")] + [["data"], ["cost"], ["config", "check"]]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("verb", ON_DATA, ids=" ".join)
def test_what_holds_no_text_is_no_data(verb: list[str], name: str, home: Path, capsys: Capture) -> None:
    (home / "empty").mkdir()
    (home / "empty.txt").touch()
    (home / "binary.dat").write_bytes(bytes(range(256)) * 4)
    options = [word for word in verb if word.startswith("--")]
    assert name in refusal(capsys, *(word for word in verb if word not in options), name, *options, codes=(3, 2))


@pytest.mark.parametrize("verb", ["train", "compare", "scale", "data", "cost"])
@pytest.mark.parametrize("content", [b"x = [", b"\xff\xfe\x00", b""], ids=["broken", "binary", "empty"])
def test_a_file_that_is_no_recipe_is_named(verb: str, content: bytes, home: Path, capsys: Capture) -> None:
    (home / "bad.toml").write_bytes(content)
    assert (
        "bad.toml" in (complaint := refusal(capsys, verb, "bad.toml", codes=(2,))) or "model: is missing" in complaint
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["scale", "notes.txt", "--rate", "-1", "--dry-run"], "--rate -1: the FLOP/s of a device are a number above 0"),
        (["scale", "notes.txt", "--rate", "nan", "--dry-run"], "--rate nan"),
        (["scale", "notes.txt", "--rungs", "-1"], "--rungs"),
        (["compare", "notes.txt", "--seeds", "-1"], "--seeds"),
        (["compare", "notes.txt", "--minutes", "-1"], "--minutes"),
        (["train", "notes.txt", "train.steps=-3"], "train.steps: must be at least 1"),
        (["train", "notes.txt", "--stesp", "3"], "No such option: --stesp"),
        (["cost", "small", "--batch", "-1"], "--batch"),
        (["data", "notes.txt", "valid=-1"], "valid: must be at least 0"),
        (["config", "show", "small", "--svg", "x.pdf"], "--svg x.pdf: the file name must end in .svg"),
        (["config", "show", "small", "--svg", "nowhere/x.svg"], "nowhere/x.svg: No such file or directory"),
        (["presets", "--out", "nowhere/x.html"], "error: nowhere/x.html: No such file or directory"),
        (["parts", "attention", "--picture", "x.pdf"], "--picture"),
        (["report", "empty.txt"], "empty.txt"),
        (["runs", "notes.txt"], "is a file, not a folder"),
        (["import", "notes.txt"], "is not a folder"),
        (["import", "new"], "new/config.json: missing"),
        (["new", "new"], "new: exists already"),
        (["claims", "nope"], "no claim is called 'nope'"),
        (["doctor", "x"], "unexpected extra argument"),
        (["nope"], "No such command 'nope'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_option_is_named(words: list[str], said: str, home: Path, capsys: Capture) -> None:
    assert said in refusal(capsys, *words, codes=(2,))


def test_an_average_of_no_checkpoints_is_refused(home: Path, capsys: Capture) -> None:
    run = str(run_of("language").folder)
    assert "needs at least one checkpoint" in refusal(capsys, "shrink", run, "--average", "0", "--out", "small")
    assert not (home / "small").exists()
