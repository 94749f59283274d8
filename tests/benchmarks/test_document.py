"""The document says what the rows say."""

from pathlib import Path

import pytest
from benchmarks.document import page
from benchmarks.fits import growths
from benchmarks.rows import Row
from benchmarks.tables import speed
from tests.benchmarks.measuring import point, row


def test_a_row_stands_with_its_ratio_and_its_target(tmp_path: Path) -> None:
    text = page([row(1.5, amount=2048, unit="token", eff=0.5)], tmp_path)
    line = next(line for line in text.splitlines() if line.startswith("| lm"))
    assert "205k token/s" in line and "| 1.50 | 50% |" in line and "speed 1.15x: reached" in line
    assert "misses by 13%" in page([row(1.0)], tmp_path) and "misses by 0.043%" in page([row(1.1495)], tmp_path)
    assert "## On a GPU\n\nNothing is measured yet." in text


def test_a_row_whose_answers_differ_is_listed_and_not_quoted(tmp_path: Path) -> None:
    text = page([row(9.0, ok=False, note="the answers differ")], tmp_path)
    assert "9.00" not in text and "- lm layers 2 against transformers: the answers differ" in text


def test_a_cost_that_grows_as_a_power_has_that_exponent(tmp_path: Path) -> None:
    rows = [point("length", x, 3.0 * x**1.5, 10 * x) for x in (4, 8, 16)]
    (growth,) = growths(rows)
    assert growth.time.exponent == pytest.approx(1.5) and growth.time.last == pytest.approx(1.5)
    assert growth.memory.exponent == pytest.approx(1.0)
    assert "| length | 4, 16 | 1.50 (1.50) |" in page(rows, tmp_path)
    assert (tmp_path / "growth-cpu.svg").read_text().rstrip().endswith("</svg>")


def test_a_profile_stands_side_by_side_with_shares(tmp_path: Path) -> None:
    spent = {("ours", "norms"): 1.0, ("ours", "attention"): 3.0, ("transformers", "norms"): 2.0}
    rows = [
        Row(item="profile", shape={"work": "training", "who": who, "group": group}, device="cpu", ours_ms=ms)
        for (who, group), ms in spent.items()
    ]
    text = page(rows, tmp_path)
    assert "| training | ours | transformers |" in text and "| attention | 3 ms, 75% |  |" in text
    assert "| norms | 1 ms, 25% | 2 ms, 100% |" in text


def test_calls_are_told_in_milliseconds_and_work_in_units_a_second() -> None:
    assert speed(row(), 10.0) == "10 ms"
    assert speed(row(amount=5.0, unit="MB"), 1000.0) == "5 MB/s"
