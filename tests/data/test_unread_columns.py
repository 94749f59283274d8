"""Columns of a table that are not read, though they may be what the user meant to predict."""

import json
from pathlib import Path

import pytest

from anyformer.data.sources.csv import CSV
from anyformer.data.sources.jsonl import JSONLines


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.json"])
def test_a_column_that_may_be_the_label_is_named_if_texts_alone_are_read(name: str, tmp_path: Path) -> None:
    rows = [{"Kommentar": f"so gut wie {n}", "Nummer": f"n{n}", "Art": "gut" if n % 2 else "böse"} for n in range(20)]
    header = ",".join(rows[0])
    texts = {
        "a.csv": "\n".join([header, *(",".join(row.values()) for row in rows)]),
        "a.jsonl": "\n".join(map(json.dumps, rows)),
        "a.json": json.dumps(rows),
    }
    (tmp_path / name).write_text(texts[name], encoding="utf-8")
    kind = CSV if name.endswith(".csv") else JSONLines
    source = kind(path=str(tmp_path / name), text="Kommentar")
    (warning,) = source.warnings()
    assert "'Kommentar' is read, as plain text" in warning and warning.endswith("data.source.label=Art")
    assert not source.with_("label", "Art").warnings()
