"""Write docs/lectures.md: every row of docs/rows.toml, in order, with the tests of its clauses.

A clause is one statement of a row. A test names its row and what it shows, `@pytest.mark.row("ATT-08", clause="...")`
with one clause or a tuple of them; a row holds when every clause has a test. Collecting does not prove that a test
passes: the suite does.
"""

import argparse
import difflib
import io
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NAMED_TESTS = 3
STATUSES = ("holds", "corrected", "depends", "does not hold", "in part", "not there yet", "nothing to test")
INTRODUCTION = """\
# The rows of the lectures

Written by `make rows` from `docs/rows.toml` and the marks on the tests; do not edit.

Each row is something that the lectures name, in clauses that tests can show. It *holds* when a test shows every clause,
is *corrected* when the lectures state it wrongly and the tests show the right fact, and holds *in part* while clauses
are missing. A claim that was measured and *depends* on the set-up, or *does not hold*, says so. Announcements and
matters of taste have *nothing to test*. The command of a row that is not there yet may not work yet either.
"""
TABLE_HEAD = """\
| id | name | what it is | command | tests | status |
|---|---|---|---|---|---|"""
Tests = Mapping[str, Mapping[str, Sequence[str]]]
"""Row -> clause -> tests; the clause of a mark that names none is empty."""


class RowError(Exception):
    """Says what is wrong, and which exit code that is."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True, kw_only=True)
class Row:
    id: str
    name: str
    section: str
    what: str
    command: str = ""
    corrected: str = ""
    clauses: Sequence[str] = ()
    """What a test can show, one statement each."""
    nothing: str = ""
    """Why there is nothing to test, if there is not."""
    verdict: str = ""
    """Of a claim: what was measured, "holds", "depends" or "does not hold"."""


class RowMarks:
    """A pytest plugin that reads the marks of each test as it is collected, before `-m` can deselect it."""

    def __init__(self) -> None:
        self.tests: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        for mark in item.iter_markers("row"):
            clause = mark.kwargs.get("clause", "")
            for row in mark.args:
                for shown in (clause,) if isinstance(clause, str) else clause:
                    self.tests[row][shown].add(item.nodeid.partition("[")[0])


def load(path: Path) -> list[Row]:
    return [Row(**row) for row in tomllib.loads(path.read_text(encoding="utf-8"))["row"]]


def collect(root: Path) -> Tests:
    """The tests under `root` by row and clause, parametrisations collapsed."""
    marks, output = RowMarks(), io.StringIO()
    options = ["--collect-only", "-q", "-p", "no:cacheprovider", "--rootdir", str(root), str(root / "tests")]
    with redirect_stdout(output), redirect_stderr(output):
        code = pytest.main(options, plugins=[marks])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise RowError(f"{output.getvalue()}tests: pytest could not collect them. Mend what it says above.", 1)
    return {row: {clause: sorted(tests) for clause, tests in clauses.items()} for row, clauses in marks.tests.items()}


def check_marks(rows: Sequence[Row], tests: Tests) -> None:
    """Refuse marks that name no row, or a clause that the row does not have."""
    known = {row.id: row.clauses for row in rows}
    lines = []
    for row, clauses in sorted(tests.items()):
        if row not in known:
            nearest = difflib.get_close_matches(row, known, n=1, cutoff=0)[0]
            lines.append(f"{first_test(clauses)}: no row '{row}' in docs/rows.toml. Nearest: {nearest}.")
            continue
        for clause in clauses:
            if clause and clause not in known[row]:
                near = difflib.get_close_matches(clause, known[row], n=1, cutoff=0)
                hint = f" Nearest: '{near[0]}'." if near else ""
                lines.append(f"{clauses[clause][0]}: {row} has no clause '{clause}'.{hint}")
    if lines:
        raise RowError("\n".join(lines), 2)


def first_test(clauses: Mapping[str, Sequence[str]]) -> str:
    return next(iter(clauses.values()))[0]


def missing(row: Row, tests: Tests) -> list[str]:
    """The clauses that no test shows."""
    return [clause for clause in row.clauses if clause not in tests.get(row.id, {})]


def status(row: Row, tests: Tests) -> str:
    if row.nothing:
        return "nothing to test"
    if row.id not in tests:
        return "not there yet"
    if missing(row, tests):
        return "in part"
    if row.verdict not in ("", "holds"):
        return row.verdict
    return "corrected" if row.corrected else "holds"


def prose(text: str) -> str:
    """Text for a cell: what Markdown would read as a border, a tag or emphasis is escaped."""
    return re.sub(r"([\\|<*])", r"\\\1", text)


def code(text: str) -> str:
    """Code for a cell: inside backticks only the border needs an escape."""
    return f"`{text}`".replace("|", r"\|") if text else ""


def named(tests: Sequence[str]) -> str:
    shown = [code(test) for test in tests[:NAMED_TESTS]]
    more = [f"+{len(tests) - NAMED_TESTS} more"] if len(tests) > NAMED_TESTS else []
    return "<br>".join(shown + more)


def told(row: Row, tests: Tests) -> str:
    """The status, with what is missing and what was measured."""
    word = status(row, tests)
    if row.nothing:
        return f"{word}: {prose(row.nothing)}"
    if word == "in part":
        lacking = missing(row, tests)
        shown = len(row.clauses) - len(lacking)
        word = f"in part, {shown} of {len(row.clauses)} clauses; missing: {prose('; '.join(lacking))}"
        if row.verdict:
            word += f" (measured: {row.verdict})"
    return word


def line(row: Row, tests: Tests) -> str:
    what = prose(row.what) + (f"<br>*{prose(row.corrected)}*" if row.corrected else "")
    every = sorted({test for some in tests.get(row.id, {}).values() for test in some})
    cells = [row.id, prose(row.name), what, code(row.command), named(every), told(row, tests)]
    return f"| {' | '.join(cells)} |"


def render(rows: Sequence[Row], tests: Tests) -> str:
    pages = [INTRODUCTION, f"**{len(rows)} rows**: {summary(rows, tests)}.\n"]
    for section, members in groupby(rows, key=lambda row: row.section):
        lines = [line(row, tests) for row in members]
        pages.append("\n".join([f"## {section}\n", TABLE_HEAD, *lines, ""]))
    return "\n".join(pages)


def summary(rows: Sequence[Row], tests: Tests) -> str:
    """The number of rows of each status, and of clauses that a test shows."""
    counts = Counter(status(row, tests) for row in rows)
    clauses, lacking = sum(len(row.clauses) for row in rows), sum(len(missing(row, tests)) for row in rows)
    every = ", ".join(f"{name} {counts[name]}" for name in STATUSES)
    return f"{every}; {clauses - lacking} of {clauses} clauses are shown"


def write(root: Path, *, check: bool) -> None:
    """Write the page, or with `check` refuse one that is not up to date."""
    path = root / "docs/lectures.md"
    rows, tests = load(root / "docs/rows.toml"), collect(root)
    check_marks(rows, tests)
    text = render(rows, tests)
    if not check:
        path.write_text(text, encoding="utf-8", newline="\n")
        print(f"wrote docs/lectures.md: {summary(rows, tests)}")
    elif not path.exists() or path.read_text(encoding="utf-8") != text:
        raise RowError("docs/lectures.md: not what the rows and the tests say now. Type `make rows`.", 1)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Write docs/lectures.md from docs/rows.toml and the marks on the tests."
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is out of date")
    try:
        write(ROOT, check=parser.parse_args().check)
    except RowError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
