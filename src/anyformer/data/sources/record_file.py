"""Records of a Python program as a file of JSON lines: runs, studies and evaluations read data from files, so that they
can be resumed and repeated."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.core.fields import is_text, shown
from anyformer.disk import write_atomically
from anyformer.errors import Problem, SpecError

ENDING = ".jsonl"
RecordValues = str | Mapping[str, Any]
"""A text, or the values of a record by column."""


def write_records(path: str | Path, records: Sequence[RecordValues] | Iterator[RecordValues]) -> Path:
    """Writes records as a file for `train`, `compare` and `evaluate`, and returns its path.

    path: ends with .jsonl; an older file is replaced.
    records: a list or a generator of texts, or of mappings from the names of columns to values, such as
        {"text": "a fine film", "label": "good"}; of a pandas table `table.to_dict("records")`.
    """
    if Path(path).suffix != ENDING:
        raise _problem("path", f"expected a path that ends with {ENDING}, got {shown(path)}.")
    if isinstance(records, str):
        raise _problem("records", f"expected several, got one string. Write [{shown(records)}].")
    if not isinstance(records, Sequence | Iterator):
        advice = 'Pass one mapping for each record, of a pandas table table.to_dict("records").'
        raise _problem("records", f"expected a list or a generator of records, got {shown(records)}. {advice}")
    lines = [_line(record, f"records[{index}]") for index, record in enumerate(records)]
    if not lines:
        raise _problem("records", "are empty. Give at least one.")
    file = Path(path).expanduser()
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, "".join(lines))
    return file


def _line(record: RecordValues, place: str) -> str:
    values = {"text": record} if isinstance(record, str) else record
    if not isinstance(values, Mapping):
        example = "{'text': 'a fine film', 'label': 'good'}"
        raise _problem(
            place, f"expected a text or a mapping with the names of columns, such as {example}, got {shown(record)}."
        )
    for name, value in values.items():
        if not isinstance(name, str):
            raise _problem(place, f"the name of a column must be a string, got {shown(name)}.")
        if isinstance(value, float | np.floating) and not math.isfinite(value):
            raise _problem(f"{place}.{name}", f"{value} is no value. Fill it in, or leave the record out.")
    try:
        line = json.dumps(dict(values), ensure_ascii=False, default=_plain)
    except (TypeError, ValueError) as error:
        raise _problem(place, f"{error}. Pass texts, numbers and lists of them.") from None
    if not is_text(line):
        raise _problem(place, f"{shown(record)} is not valid UTF-8.")
    return f"{line}\n"


def _plain(value: Any) -> Any:
    """A number of numpy as one of Python."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not JSON serializable")


def _problem(path: str, text: str) -> SpecError:
    return SpecError(problems=[Problem(path, text)])
