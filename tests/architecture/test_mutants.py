"""The mutation tester changes what it says it changes, and counts what it says it counts."""

import math

import pytest
from tools.mutants import by_file, choose, table, wilson
from tools.mutations import Finder, sample

SECONDS = {"a.py::f[1]": 0.1, "a.py::f[2]": 0.2, "a.py::g": 0.5, "b.py::h": 0.3}


def edits(text: str) -> set[str]:
    """The lines that the mutants of a function body have in place of its own."""
    return {mutant.after for mutant in Finder("core/x.py", f"def f(x):\n    {text}\n".encode()).mutants}


def record(file: str, status: str) -> dict[str, object]:
    return {"file": file, "line": 7, "before": "a + b", "after": "a - b", "status": status}


@pytest.mark.parametrize(
    ("text", "mutants"),
    [
        ("return x + y", {"return x - y"}),
        ("return (x) * (y)  # * is a product", {"return (x) / (y)  # * is a product"}),
        ("return a <= b", {"return a < b", "return a > b"}),
        ("return a is  not b", {"return a is b"}),
        ("return a and b and c", {"return a or b and c", "return a and b or c"}),
        ("return -x", {"return x"}),
        ("return not x", {"return  x"}),
        ("return 2, 0.5, 0.0, True", {"return 3, 0.5, 0.0, True", "return 2, 1.0, 0.0, True"}
         | {"return 2, 0.5, 1.0, True", "return 2, 0.5, 0.0, False"}),
        ("return a if f(b) else c", {"return a if (not (f(b))) else c"}),
        ("return [a for a in b if a.c]", {"return [a for a in b if (not (a.c))]"}),
        ("return 'é', x + y", {"return 'é', x - y"}),
        ("raise Wrong('of ' + str(1 + 1))", {"pass"}),
        ("x.sort()", {"pass"}),
        ("x = f(x)", {"pass"}),
        ("y = f(x)", set()),
    ],
)  # fmt: skip
def test_every_edit_changes_one_place_and_keeps_the_rest(text: str, mutants: set[str]) -> None:
    assert edits(text) == mutants


@pytest.mark.parametrize(
    "text",
    [
        "'1 + 1'", "assert x > 1", "return f'{x + 1}'", "x: Literal[1]", "return zip(x, y, strict=True)", "print(1)",
        "return isinstance(x, int | str)", "def __repr__(self): return 1", "raise NotImplementedError",
        "@cache(1)\n    def g(y: Literal[2]) -> Literal[3]: ...", "if TYPE_CHECKING: x = 1",
    ],
)  # fmt: skip
def test_what_no_test_is_meant_to_see_is_not_changed(text: str) -> None:
    assert edits(text) == set()


def test_a_mutant_knows_its_lines_and_whether_it_runs_at_import() -> None:
    default, body = Finder("core/x.py", b"def f(x=1):\n    return (x\n        + y)\n").mutants
    assert (default.line, default.in_function) == (1, False)
    assert (body.line, body.in_function) == (3, True)


def test_every_mutant_of_the_source_is_another_text_and_a_smaller_sample_is_the_beginning_of_a_larger_one() -> None:
    mutants = sample(300, 1, ["core"])
    assert mutants[:20] == sample(20, 1, ["core"])
    assert all(mutant.before != mutant.after for mutant in mutants)
    assert len({mutant.key for mutant in mutants}) == 300


def test_tests_are_spread_over_functions_and_the_fastest_come_first() -> None:
    assert choose(SECONDS, SECONDS, 3) == ["a.py::f[1]", "b.py::h", "a.py::g"]
    assert choose(SECONDS, SECONDS, 9) == ["a.py::f[1]", "a.py::f[2]", "b.py::h", "a.py::g"]
    assert by_file(["b.py::h", "a.py::f", "c.py::k", "a.py::g", "b.py::i", "a.py::l"]) == [
        ["a.py::f", "a.py::g", "a.py::l"],
        ["b.py::h", "b.py::i", "c.py::k"],
    ]


def test_the_interval_is_where_the_score_test_has_its_critical_value() -> None:
    for bound in wilson(45, 50):
        assert abs(0.9 - bound) / math.sqrt(bound * (1 - bound) / 50) == pytest.approx(1.96)


def test_the_table_leaves_equivalent_and_uncovered_mutants_out_of_the_share() -> None:
    statuses = {"killed": 2, "timed out": 1, "survived": 1, "not covered": 1}
    records = [record("core/x.py", status) for status, count in statuses.items() for _ in range(count)]
    records.append(record("ops/y.py", "survived"))
    head, _, core, ops, total, _, *survivors = table(records, {("ops/y.py", "a + b", "a - b")}).splitlines()
    assert head.split(" | ")[1:5] == ["killed", "survived", "equivalent", "not covered"]
    assert core.startswith("| core | 3 | 1 | 0 | 1 | 75.0% |")
    assert ops.startswith("| ops | 0 | 0 | 1 | 0 | – |")
    assert total.startswith("| all | 3 | 1 | 1 | 1 | 75.0% |")
    assert survivors[0] == "core/x.py:7 (not covered)"
    assert len(survivors) == 6
