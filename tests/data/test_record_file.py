"""Records of a Python program as a file that every verb reads."""

import datetime
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anyformer.data.sources.named_source import source_of
from anyformer.data.sources.record_file import write_records
from anyformer.errors import SpecError


def test_texts_are_read_back_as_they_were_also_from_a_generator(tmp_path: Path) -> None:
    texts = ["one\nline", "日本 🎉\u2028", '"quoted"\t']
    path = write_records(tmp_path / "new" / "texts.jsonl", (text for text in texts))
    assert [record.text for record in source_of(str(path)).records()] == texts


def test_columns_are_read_back_with_numbers_of_numpy(tmp_path: Path) -> None:
    rows = [{"text": "good", "label": np.int64(1)}, OrderedDict(text="bad", label=np.float32(0.5))]
    path = write_records(str(tmp_path / "rows.jsonl"), rows)
    assert [(record.text, record.label) for record in source_of(str(path)).records()] == [("good", "1"), ("bad", "0.5")]


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], "records: are empty"),
        ("one text", "records: expected several"),
        ({"text": ["a"], "label": ["b"]}, r"records: expected a list or a generator .*one mapping for each record"),
        ([("a", "b")], r"records\[0\]: expected a text or a mapping .*such as {'text': "),
        ([{"text": "a"}, {"text": float("nan")}], r"records\[1\].text: nan is no value"),
        ([{"text": datetime.date(2020, 1, 1)}], r"records\[0\]: .*date is not JSON serializable"),
        ([{1: "a"}], r"records\[0\]: the name of a column must be a string, got 1"),
        (["\ud800"], r"records\[0\]: .* not valid UTF-8"),
    ],
)
def test_records_that_no_file_can_hold_are_named(tmp_path: Path, records: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        write_records(tmp_path / "rows.jsonl", records)
    assert not list(tmp_path.iterdir())


def test_a_file_of_records_ends_with_jsonl(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"path: expected a path that ends with \.jsonl, got .*texts\.csv"):
        write_records(tmp_path / "texts.csv", ["a"])
