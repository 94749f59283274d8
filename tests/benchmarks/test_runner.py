"""Items in processes of their own."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.harness import Bench
from benchmarks.rows import Row, read, to_line
from benchmarks.runner import ITEMS, item_of, run

from benchmarks import runner

TINY = Bench(size="tiny")
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def good(bench: Bench) -> Iterator[Row]:
    yield Row(item="good", shape={}, device=bench.name, ours_ms=1.0)


def crash(bench: Bench) -> Iterator[Row]:
    yield Row(item="crash", shape={}, device=bench.name, ours_ms=1.0)
    os._exit(3)


def hang(bench: Bench) -> Iterator[Row]:
    time.sleep(600)
    yield from ()


@pytest.fixture
def items(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "item_of", {"good": good, "crash": crash, "hang": hang}.__getitem__)


@pytest.mark.usefixtures("items")
def test_what_crashes_says_so_and_takes_nothing_with_it() -> None:
    found = [(row.item, row.ok, row.note) for row in run(["crash", "good"], TINY, budget_s=600.0)]
    assert found == [("crash", True, ""), ("crash", False, "ended with exit code 3"), ("good", True, "")]


@pytest.mark.usefixtures("items")
def test_what_does_not_fit_into_the_budget_says_so() -> None:
    found = [(row.item, row.ok, row.note) for row in run(["hang", "good"], TINY, budget_s=0.2)]
    assert found == [
        ("hang", False, "did not finish within the budget"),
        ("good", False, "not begun: the budget was spent"),
    ]


@pytest.mark.parametrize("name", ["muon", "roofs", "window"])
def test_items_are_found_by_their_names(name: str) -> None:
    assert name in ITEMS and callable(item_of(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lm", "mlm", "seq2seq", "decode", "beam", "encode"])
def test_an_item_measures_tiny_work_against_its_peers(name: str) -> None:
    rows = list(run([name], TINY, budget_s=600.0))
    assert rows and all(row.ok and row.ratio for row in rows), [row.note for row in rows]


def test_a_row_survives_being_written_down(tmp_path: Path) -> None:
    row = Row(item="lm", shape={"layers": 2, "of": "training"}, device="cpu", peer="x", ours_ms=1.5, ratio=2.0)
    file = tmp_path / "rows.jsonl"
    file.write_text(f"{to_line(row)}\n{to_line(row)}\n")
    assert read([file]) == [row]
