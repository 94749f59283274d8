"""Parquet files, read by pyarrow in batches of rows."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from anyformer.data.record import Record
from anyformer.data.sources.columns import ColumnSource, chosen, missing, record_of
from anyformer.data.sources.files import pyarrow
from anyformer.errors import DataError

ROWS = 1024  # at a time


@dataclass(frozen=True, kw_only=True)
class Parquet(ColumnSource, kind="parquet"):
    """Parquet files, columns by name (needs the extra `data`)."""

    patterns = ("*.parquet",)

    choices: str | None = None
    """The column of a list of answers; the label is the index of the right one."""

    @classmethod
    def examples(cls) -> "tuple[Parquet, ...]":
        return (cls(path="reviews.parquet", label="stars"),)

    def rows(self, file: Path) -> Iterator[Callable[[], Record]]:
        names = chosen(self)
        return (partial(record_of, row, names, f"{file}:{n}") for n, row in enumerate(rows(file, names), 1))

    def tables(self, file: Path) -> Iterator[Mapping[str, Any]]:
        return rows(file, {})


def rows(file: Path, names: Mapping[str, str]) -> Iterator[Any]:
    """Every row as a table of the named columns; of all columns if there are no names."""
    arrow = pyarrow(file)
    try:
        table = arrow.parquet.ParquetFile(file)
        known = list(table.schema_arrow.names)
        columns = {slot: name if name in known else name.partition(".")[0] for slot, name in names.items()}
        for slot, column in columns.items():
            if column not in known:
                raise missing(names[slot], known, slot, str(file), "column")
        for batch in table.iter_batches(batch_size=ROWS, columns=sorted(set(columns.values())) or None):
            yield from batch.to_pylist()
    except (OSError, arrow.ArrowException) as error:
        raise DataError(f"{file}: is not a Parquet file that can be read: {str(error).rstrip('.')}.") from None
