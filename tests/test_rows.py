"""The list of rows is well formed, and the page made of it tells the truth."""

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from tests.analysis.test_claims import BY_THE_CLOCK, LEARNED, VERDICTS
from tools import rows
from tools.rows import Row, RowError

from anyformer.analysis.claim import claims
from anyformer.core.discovery import discover
from anyformer.core.spec import Spec

ROOT = Path(__file__).parents[1]
SPECIFICATION = ROOT.parent / "shared" / "spec" / "rows.md"
ROWS = rows.load(ROOT / "docs/rows.toml")
COMMAND = re.compile(r"(anyformer (claims|config|cost|doctor|parts|scale)|pytest)( \S+)*")
MADE_UP = [
    Row(id="AAA-01", name="Plain", section="First", what="f(x) = x", clauses=("is x", "has no weights")),
    Row(id="AAA-02", name="Wrong", section="First", what="p(a | b) <= 1", corrected="The lectures say p > 1."),
    Row(id="BBB-01", name="Absent", section="Second", what="nothing yet", command="anyformer parts absent"),
    Row(id="BBB-02", name="Claim", section="Second", what="a < b", clauses=("a < b",), verdict="depends"),
    Row(id="BBB-03", name="Taste", section="Second", what="a is nice", nothing="a matter of taste"),
]
MARKED = """
import pytest

@pytest.mark.row("AAA-01", "AAA-02")
@pytest.mark.parametrize("n", [1, 2])
def test_two_rows(n): ...

@pytest.mark.slow
@pytest.mark.row("AAA-01", clause=("is x", "has no weights"))
def test_late(): ...
"""
TWO_ROWS = """
[[row]]
id = "AAA-01"
name = "Plain"
section = "First"
what = "f(x) = x"
clauses = ["is x", "has no weights"]

[[row]]
id = "AAA-02"
name = "Wrong"
section = "First"
what = "p <= 1"
corrected = "The lectures say p > 1."
"""
SETTINGS = "[pytest]\naddopts = -m 'not slow'\nmarkers =\n    row\n    slow\n"


def lines(tests: rows.Tests) -> dict[str, str]:
    """The lines of the made-up page by the id that they start with."""
    found = (re.match(r"\| ([A-Z]{3}-\d\d) \|", line) for line in rows.render(MADE_UP, tests).splitlines())
    return {match[1]: match.string for match in found if match}


def test_every_row_of_the_lectures_is_listed_once() -> None:
    assert len(ROWS) == 302
    assert len({row.id for row in ROWS}) == 302


def test_every_command_names_something_that_exists() -> None:
    discover()
    kinds = {kind for family in Spec.__subclasses__() for kind in family.kinds}
    presets = {path.stem for path in (ROOT / "src/anyformer/models/presets").glob("*.toml")}
    measured = {row for claim in claims() for row in claim.ids}
    known = {"claims": measured, "config": {"show"}, "cost": presets, "parts": kinds, "scale": presets}
    for row in ROWS:
        program, *words = (row.command or "").split()[:3] or [""]
        if program == "anyformer" and len(words) == 2:
            assert words[1] in known[words[0]], row.id


def test_sections_are_not_torn_apart() -> None:
    headings = re.findall(r"^## .*$", rows.render(ROWS, {}), flags=re.MULTILINE)
    assert len(headings) == len(set(headings)) == 18


def test_rows_have_clauses_or_nothing_to_test() -> None:
    assert not [row.id for row in ROWS if bool(row.clauses) == bool(row.nothing)]
    assert not [row.id for row in ROWS if len(set(row.clauses)) < len(row.clauses)]
    clauses = [clause for row in ROWS for clause in row.clauses]
    assert not [clause for clause in clauses if not 0 < len(clause) <= 70 or clause.endswith(".")]
    assert not [clause for clause in clauses if not (clause.isascii() and clause.isprintable())]


@pytest.mark.skipif(not SPECIFICATION.exists(), reason="the specification of the rows is not there")
def test_rows_have_a_clause_for_their_definition_and_for_each_part_of_their_check() -> None:
    assert not [row.id for row in ROWS if row.clauses and len(row.clauses) < 1 + checks_of(row.id)]


@cache
def specified() -> dict[str, str]:
    """Row -> the cell that says how to verify it."""
    text = SPECIFICATION.read_text(encoding="utf-8")
    lines = re.findall(r"^\| ([A-Z]{2,3}-T?\d{1,2}) \|(.*)\|$", text, flags=re.MULTILINE)
    cells = {row: re.split(r"(?<!\\)\|", rest) for row, rest in lines}
    return {row: columns[3] for row, columns in cells.items() if len(columns) == 5}


def checks_of(row: str) -> int:
    """Parts of the check of a row, separated by semicolons outside of parentheses."""
    text = re.sub(r"\([^()]*\)", "", specified()[row])
    return len([part for part in text.split(";") if part.strip()])


def test_claims_have_the_verdict_that_is_measured() -> None:
    measured = {**VERDICTS, **BY_THE_CLOCK, **LEARNED}
    assert {row.id: row.verdict for row in ROWS if row.verdict} == measured


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_a_row_is_complete_and_short(row: Row) -> None:
    assert re.fullmatch(r"[A-Z]{2,3}-T?\d{1,2}", row.id)
    assert row.name and row.section and row.what
    assert len(row.what) <= 160
    assert all(text.isascii() and text.isprintable() for text in (row.name, row.section, row.what, row.corrected))
    assert not row.command or COMMAND.fullmatch(row.command)


PLAIN, WRONG = ["tests/test_a.py::test_plain"], ["tests/test_a.py::test_wrong"]


NOTED = {"SUM-11": ("1.9 to 5.0", "probably the log-perplexity"), "TSK-11": ("hello_t2t.ipynb", "jessevig/bertviz")}


@pytest.mark.row("SUM-11", clause="published 1.9 to 5.05 noted as probably log-perplexity in nats")
@pytest.mark.row("TSK-11", clause="addresses are right: hello_t2t.ipynb, github.com/jessevig/bertviz")
@pytest.mark.parametrize("name", NOTED)
def test_a_slip_of_the_lectures_is_noted_on_the_page(name: str) -> None:
    page = (ROOT / "docs/lectures.md").read_text()
    (line,) = (line for line in page.splitlines() if line.startswith(f"| {name} |"))
    assert all(words in line for words in NOTED[name])


def test_a_row_without_a_test_is_not_there_yet() -> None:
    page = lines({"AAA-01": {"is x": PLAIN, "has no weights": PLAIN}, "AAA-02": {"": WRONG}})
    assert page["AAA-01"].endswith("| `tests/test_a.py::test_plain` | holds |")
    assert page["AAA-02"].endswith("| `tests/test_a.py::test_wrong` | corrected |")
    assert page["BBB-01"].endswith("| `anyformer parts absent` |  | not there yet |")
    assert lines({})["AAA-02"].endswith("| not there yet |")


def test_a_row_holds_in_part_until_every_clause_has_a_test() -> None:
    assert lines({"AAA-01": {"": PLAIN, "is x": PLAIN}})["AAA-01"].endswith(
        "| in part, 1 of 2 clauses; missing: has no weights |"
    )


def test_a_claim_that_depends_never_holds() -> None:
    assert lines({"BBB-02": {"a < b": PLAIN}})["BBB-02"].endswith("| depends |")
    assert lines({"BBB-02": {"": PLAIN}})["BBB-02"].endswith("missing: a \\< b (measured: depends) |")


def test_what_cannot_be_tested_says_why() -> None:
    assert lines({})["BBB-03"].endswith("| nothing to test: a matter of taste |")


def test_the_page_counts_each_status_and_the_clauses() -> None:
    page = rows.render(MADE_UP, {"AAA-01": {"is x": PLAIN}, "AAA-02": {"": WRONG}})
    assert "**5 rows**: holds 0, corrected 1, depends 0, does not hold 0, in part 1, not there yet 2, " in page
    assert "nothing to test 1; 1 of 3 clauses are shown." in page


def test_borders_and_tags_are_escaped() -> None:
    assert r"| p(a \| b) \<= 1<br>*The lectures say p > 1.* |" in lines({})["AAA-02"]
    assert rows.code("a | b") == r"`a \| b`"


def test_three_tests_are_named_and_the_rest_counted() -> None:
    assert rows.named(["a", "b", "c"]) == "`a`<br>`b`<br>`c`"
    assert rows.named(["a", "b", "c", "d", "e"]) == "`a`<br>`b`<br>`c`<br>+2 more"


def test_a_mark_that_names_no_row_is_refused() -> None:
    with pytest.raises(RowError, match=r"test_a: no row 'AAA-2' in docs/rows.toml. Nearest: AAA-02.") as refused:
        rows.check_marks(MADE_UP, {"AAA-01": {"": PLAIN}, "AAA-2": {"": ["tests/test_a.py::test_a"]}})
    assert refused.value.exit_code == 2


def test_a_mark_that_names_no_clause_of_its_row_is_refused() -> None:
    with pytest.raises(RowError, match=r"test_plain: AAA-01 has no clause 'is y'. Nearest: 'is x'."):
        rows.check_marks(MADE_UP, {"AAA-01": {"is y": PLAIN}})


def made_up_project(root: Path, source: str) -> Path:
    """A project of two rows with one file of tests, and its own copy of the tool."""
    texts = {"pytest.ini": SETTINGS, "tests/test_made_up.py": source, "docs/rows.toml": TWO_ROWS}
    texts["tools/rows.py"] = (ROOT / "tools/rows.py").read_text()
    for name, text in texts.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    return root


def run(root: Path, *options: str) -> tuple[int, str]:
    # another process: a pytest inside this one would leave its `tests` among our modules
    command, alone = [sys.executable, "tools/rows.py", *options], {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=root, env=alone, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_marks_are_read_from_every_test_even_a_deselected_one_and_an_old_page_is_refused(tmp_path: Path) -> None:
    root = made_up_project(tmp_path, MARKED)  # one for both questions: every run of the tool is a process
    assert run(root, "--check")[0] == 1
    code, message = run(root)
    assert code == 0 and "holds 1, corrected 1" in message and "2 of 2 clauses" in message
    page = (root / "docs/lectures.md").read_text()
    assert "| `tests/test_made_up.py::test_late`<br>`tests/test_made_up.py::test_two_rows` | holds |" in page
    assert "| `tests/test_made_up.py::test_two_rows` | corrected |" in page
    assert run(root, "--check")[0] == 0
    (root / "docs/lectures.md").write_text("old")
    code, message = run(root, "--check")
    assert code == 1 and "make rows" in message
    assert (root / "docs/lectures.md").read_text() == "old"


def test_an_unknown_mark_stops_the_tool(tmp_path: Path) -> None:
    code, message = run(made_up_project(tmp_path, MARKED.replace("AAA-02", "AAA-2")))
    assert code == 2 and "tests/test_made_up.py::test_two_rows: no row 'AAA-2'" in message


def test_tests_that_cannot_be_collected_stop_the_tool(tmp_path: Path) -> None:
    code, message = run(made_up_project(tmp_path, "import no_such_module"))
    assert code == 1 and "No module named 'no_such_module'" in message
