"""The command line itself: exit codes, what is said of mistakes, and that it stays light."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from anyformer.cli.main import Verbs, main
from anyformer.cli.output import screen as _screen
from anyformer.cli.output.screen import Panel, verb
from anyformer.cli.verbs import cost
from anyformer.core import readable_numbers
from anyformer.errors import AnyformerError, CheckpointError, DataError, ResourceError, SpecError

Capture = pytest.CaptureFixture[str]
LIGHT = """
import sys
from anyformer.cli.main import main
code = main(sys.argv[2:])
assert sys.argv[1] not in sys.modules, f"{sys.argv[1]} was imported"
sys.exit(code)
"""


def run_without(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command as one would type it; fails where it loads the module."""
    return subprocess.run([sys.executable, "-c", LIGHT, module, *arguments], capture_output=True, text=True)


def fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    @verb()
    def broken(*, screen: _screen.Screen) -> None:
        raise error

    monkeypatch.setattr(cost, "cost", broken)


@pytest.mark.parametrize(
    "words", [["cost"], ["parts"], ["doctor"], ["config", "show"], ["config", "diff"], ["config", "schema"]]
)
def test_every_verb_has_help_with_an_example_json_and_quiet(words: list[str], capsys: Capture) -> None:
    assert main([*words, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"anyformer {' '.join(words)}" in text.partition("Examples")[2]
    assert "--json" in text
    assert "--quiet" in text


HELP = """
import sys
from anyformer.cli.main import main
assert main(["train", "--help"]) == 0 and "anyformer.cli.verbs.cost" not in sys.modules, "another verb was imported"
for words in ("cost --help", "config show --help", "cost", "config shwo"):
    assert main(words.split()) == (0 if "--help" in words else 2), words
    assert "torch" not in sys.modules, words
"""


def test_help_and_usage_errors_import_no_torch_and_only_the_verb_that_was_typed() -> None:
    result = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_the_help_lists_each_verb_on_one_line_by_purpose(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    lines = [line.strip("│ ") for line in text.splitlines() if line.startswith("│")]
    for name in Verbs.files:
        summaries = [line for line in lines if line.split()[0] == name]
        assert len(summaries) == 1 and summaries[0].endswith("."), name
    headings = [line for line in text.splitlines() if line.startswith("╭")]
    assert [heading for panel in get_args(Panel) for heading in headings if f" {panel} " in heading] == headings[1:]


def test_no_verb_at_all_shows_the_help(capsys: Capture) -> None:
    assert main([]) == 0
    assert "anyformer train notes.txt" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["cots", "small"], "Did you mean 'cost'?"),
        (["config", "shwo"], "Did you mean 'show'?"),
        (["cost"], "TARGET"),
        (["cost", "small", "--lenght", "8"], "--lenght"),
        (["cost", "small", "--import", "f.py"], "--import goes before the verb: anyformer --import FILE cost ..."),
        (["config", "show", "small", "--import=f.py"], "anyformer --import FILE config show ..."),
        (["cost", "small", "--batch", "0"], "--batch"),
        (["cost", "small", "--batch", "x"], "--batch"),
    ],
)
def test_a_usage_error_says_what_and_where_help_is(arguments: list[str], complaint: str, capsys: Capture) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert complaint in captured.err
    assert "--help" in captured.err


@pytest.mark.parametrize("kind", [AnyformerError, SpecError, DataError, CheckpointError, ResourceError])
def test_an_error_is_its_message_and_its_exit_code(
    kind: type[AnyformerError], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    fail_with(kind("one [bold]\ntwo"), monkeypatch)
    assert main(["cost"]) == kind.exit_code
    assert capsys.readouterr().err == "error: one [bold]\nerror: two\n"


def test_a_bug_is_one_line_and_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    fail_with(ZeroDivisionError("oh\nno"), monkeypatch)
    assert main(["cost"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: this is a bug in anyformer (ZeroDivisionError: oh). Run it again with --debug")
    for arguments in (["--debug", "cost"], ["cost", "--debug"]):
        assert main(arguments) == 1
        assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_is_130(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    fail_with(KeyboardInterrupt(), monkeypatch)
    assert main(["cost"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_an_interrupt_during_an_import_is_one_line_whatever_the_import_makes_of_it(tmp_path: Path) -> None:
    lines = ("import time", "print('begun', flush=True)", "try:", "    time.sleep(60)", "except KeyboardInterrupt:")
    (tmp_path / "slow.py").write_text("\n".join([*lines, "    raise ImportError('numpy failed') from None"]))
    command = [sys.executable, "-m", "anyformer", "--import", str(tmp_path / "slow.py"), "cost", "small"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "begun\n"
    child.send_signal(signal.SIGINT)
    assert child.communicate()[1] == "interrupted\n" and child.returncode == 130


def test_an_interrupt_while_the_program_is_loaded_is_one_line(tmp_path: Path) -> None:
    lines = (
        "import os, signal",
        "try:",
        "    os.kill(os.getpid(), signal.SIGINT)",
        "except KeyboardInterrupt:",
        "    pass",
    )
    (tmp_path / "typer.py").write_text("\n".join(lines))  # an extension module may do so while it is imported
    command, environment = [sys.executable, "-m", "anyformer", "cost"], {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (result.stderr, result.returncode) == ("interrupted\n", 130)


def test_a_reader_that_leaves_early_hears_no_complaint() -> None:
    command = f"{sys.executable} -m anyformer cost --help | head -n 1; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert result.returncode == 0
    assert result.stderr == ""


def test_a_broken_pipe_inside_a_verb_is_quiet(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    fail_with(BrokenPipeError(32, "closed"), monkeypatch)
    assert main(["cost"]) == 0
    assert capsys.readouterr().err == ""


def test_a_terminal_without_our_letters_still_gets_an_answer() -> None:
    command = [sys.executable, "-X", "utf8=0", "-m", "anyformer", "--help"]
    environment = {"PYTHONIOENCODING": "ascii", "PYTHONPATH": ":".join(sys.path), "LC_ALL": "C"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr


def test_a_wrong_value_is_refused_without_the_second_that_statistics_take_to_load() -> None:
    result = run_without("scipy.stats", "cost", "small", "model.dropout=1.5", "model.dim=-1")
    assert result.returncode == 2, result.stderr
    assert sorted(result.stderr.splitlines()) == [
        "error: model.dim: must be at least 1, got -1.",
        "error: model.dropout: must be below 1, got 1.5.",
    ]


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (999, "999"), (1000, "1.00 k"), (65_536, "65.5 k"), (999_999, "1.00 M"), (1.75e11, "175 B")],
)
def test_numbers_have_three_digits(number: float, text: str) -> None:
    assert readable_numbers.human(number) == text


def test_bytes_count_in_1024_and_flops_in_1000() -> None:
    assert readable_numbers.human_bytes(1536) == "1.50 KiB"
    assert readable_numbers.human_bytes(12) == "12 B"
    assert readable_numbers.human_flops(3.6e14) == "360 TFLOP"
    assert _screen.share(1, 4) == "25.0 %"
    assert _screen.share(1, 10**6) == "<0.1 %"
    assert _screen.share(0, 4) == ""
