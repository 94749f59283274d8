"""Write docs/lectures.md: every row of docs/rows.toml, in order, with the tests that hold it.

A test names its rows with `@pytest.mark.row("ATT-08", ...)`. Collecting does not prove that it passes: the suite does.
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
STATUSES = ("holds", "corrected", "not there yet")
INTRODUCTION = """\
# The rows of the lectures

Written by `make rows` from `docs/rows.toml` and the marks on the tests; do not edit.

Each row is something that the lectures name. It *holds* when at least one test carries its mark, is *corrected* when
the lectures state it wrongly and a test holds the right fact, and is otherwise *not there yet*.
The command of a row that is not there yet may not work yet either.
"""
TABLE_HEAD = """\
| id | name | what it is | command | tests | status |
|---|---|---|---|---|---|"""
Tests = Mapping[str, Sequence[str]]


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


class RowMarks:
    """A pytest plugin that reads the marks of each test as it is collected, before `-m` can deselect it."""

    def __init__(self) -> None:
        self.tests: dict[str, set[str]] = defaultdict(set)

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        for mark in item.iter_markers("row"):
            for row in mark.args:
                self.tests[row].add(item.nodeid.partition("[")[0])


def load(path: Path) -> list[Row]:
    return [Row(**row) for row in tomllib.loads(path.read_text(encoding="utf-8"))["row"]]


def collect(root: Path) -> Tests:
    """The tests under `root` by the id of the row that they hold, parametrisations collapsed."""
    marks, output = RowMarks(), io.StringIO()
    options = ["--collect-only", "-q", "-p", "no:cacheprovider", "--rootdir", str(root), str(root / "tests")]
    with redirect_stdout(output), redirect_stderr(output):
        code = pytest.main(options, plugins=[marks])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise RowError(f"{output.getvalue()}tests: pytest could not collect them. Mend what it says above.", 1)
    return {row: sorted(tests) for row, tests in marks.tests.items()}


def check_marks(rows: Sequence[Row], tests: Tests) -> None:
    """Refuse marks that name no row."""
    ids = [row.id for row in rows]
    unknown = sorted(set(tests) - set(ids))
    nearest = {row: difflib.get_close_matches(row, ids, n=1, cutoff=0)[0] for row in unknown}
    lines = [f"{tests[row][0]}: no row '{row}' in docs/rows.toml. Nearest: {nearest[row]}." for row in unknown]
    if lines:
        raise RowError("\n".join(lines), 2)


def status(row: Row, tests: Tests) -> str:
    if row.id not in tests:
        return "not there yet"
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


def line(row: Row, tests: Tests) -> str:
    what = prose(row.what) + (f"<br>*{prose(row.corrected)}*" if row.corrected else "")
    cells = [row.id, prose(row.name), what, code(row.command), named(tests.get(row.id, ())), status(row, tests)]
    return f"| {' | '.join(cells)} |"


def render(rows: Sequence[Row], tests: Tests) -> str:
    counts = Counter(status(row, tests) for row in rows)
    total = f"**{len(rows)} rows**: " + ", ".join(f"{name} {counts[name]}" for name in STATUSES) + ".\n"
    pages = [INTRODUCTION, total]
    for section, members in groupby(rows, key=lambda row: row.section):
        lines = [line(row, tests) for row in members]
        pages.append("\n".join([f"## {section}\n", TABLE_HEAD, *lines, ""]))
    return "\n".join(pages)


def page(root: Path) -> str:
    rows, tests = load(root / "docs/rows.toml"), collect(root)
    check_marks(rows, tests)
    return render(rows, tests)


def write(root: Path, *, check: bool) -> None:
    """Write the page, or with `check` refuse one that is not up to date."""
    path = root / "docs/lectures.md"
    text = page(root)
    if not check:
        path.write_text(text, encoding="utf-8", newline="\n")
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
