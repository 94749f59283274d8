"""docs/own-data.md names what the program has."""

import re
from pathlib import Path

from anyformer.data.checks.check import Check

PAGE = Path(__file__).parents[2] / "docs" / "own-data.md"


def test_every_check_is_in_the_table_of_warnings() -> None:
    Check.load_kinds()
    table = PAGE.read_text(encoding="utf-8").partition("\n## Warnings\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == {*Check.kinds, "source"}
