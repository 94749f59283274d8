"""Parquet files, read by pyarrow in batches of rows."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anyformer.data.record import Record, SourceSpec
from anyformer.data.sources.columns import chosen, missing, record_of, splits_by_name
from anyformer.data.sources.files import OnError, existing, files_in, fingerprint, kept, pyarrow
from anyformer.errors import DataError

ROWS = 1024  # at a time


@dataclass(frozen=True, kw_only=True)
class Parquet(SourceSpec, kind="parquet"):
    """Parquet files, columns by name (needs the extra `data`)."""

    path: str
    """The file; or a folder of them, in which train.parquet, valid.parquet, test.parquet are those splits."""
    text: str = "text"
    """The column of the document, or of the source of a pair; `a.b` is column b inside column a."""
    target: str | None = None
    """The column of the other half of a pair: the translation, the summary, the answer."""
    label: str | None = None
    """The column of a class or a number."""
    tags: str | None = None
    """The column of a list of labels, one for each word."""
    choices: str | None = None
    """The column of a list of answers; the label is the index of the right one."""
    group: str | None = None
    """The column of a name: records of one group never cross a split."""
    split: str | None = None
    """The column that says train, valid or test."""
    on_error: OnError = "stop"
    """What to do at a bad row: stop, or skip it (which stops past 1%)."""

    @classmethod
    def examples(cls) -> "tuple[Parquet, ...]":
        return (cls(path="reviews.parquet", label="stars"),)

    def records(self) -> Iterator[Record]:
        names, files = chosen(self), self.files()
        splits = {} if self.split else splits_by_name(files)

        def read(item: tuple[str, str, Any]) -> Record:
            name, where, row = item
            record = record_of(row, names, where)
            return replace(record, split=splits[name]) if name in splits else record

        items = (
            (name, f"{file}:{number}", row)
            for name, file in files.items()
            for number, row in enumerate(rows(file, names), 1)
        )
        return kept(items, read, self, self.on_error)

    def fingerprint(self) -> str:
        return fingerprint(self, self.files())

    def files(self) -> dict[str, Path]:
        return files_in(existing(self.path), "*.parquet")


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
