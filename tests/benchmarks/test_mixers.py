"""The stored times of all mixers, and the page that shows them."""

import json
from pathlib import Path

from benchmarks.mixers import FULL, mixers, tables

ROOT = Path(__file__).parents[2]


def test_the_page_shows_the_stored_times() -> None:
    rows = [json.loads(line) for line in (ROOT / "docs/results/mixers.jsonl").read_text(encoding="utf-8").splitlines()]
    page = (ROOT / "docs/experiments.md").read_text(encoding="utf-8")
    assert [line for line in tables(rows) if line not in page] == []
    for length in {row["length"] for row in rows}:
        measured = {row["name"] for row in rows if row["table"] == "mixers" and row["length"] == length}
        assert measured == set(mixers(8))


def test_ratios_are_those_to_full_attention_and_failures_are_named() -> None:
    facts = {"table": "mixers", "length": 64}
    rows = [{**facts, "name": FULL, "training": 2.0}, {**facts, "name": "fast", "training": 1.0}]
    rows += [{**facts, "name": "large", "failed": "out of memory"}]
    lines = list(tables(rows))
    assert "| fast | 1.00 (0.50) |" in lines and "| large | failed |" in lines
