"""Small data for the tests of the pipeline: a source that is a list."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from anyformer.data.preparation.pipeline import DataSpec, prepare
from anyformer.data.preparation.shards import Prepared
from anyformer.data.record import Record, SourceSpec
from anyformer.data.tokenizers.byte import Byte


@dataclass(frozen=True, kw_only=True)
class Listed(SourceSpec, kind="test_listed"):
    """Records that a test has put on the shelf."""

    shelf: ClassVar[dict[str, list[Record]]] = {}
    name: str = "nothing"

    @classmethod
    def of(cls, records: Iterable[Record]) -> "Listed":
        kept = list(records)
        name = hashlib.sha256(repr(kept).encode()).hexdigest()
        cls.shelf[name] = kept
        return cls(name=name)

    def records(self) -> Iterator[Record]:
        return iter(self.shelf.get(self.name, []))

    def fingerprint(self) -> str:
        return self.name


def documents(lengths: Iterable[int]) -> list[Record]:
    """Different texts of given numbers of bytes."""
    return [
        Record(f"{place}:".ljust(length, "x")[:length], where=f"list:{place}") for place, length in enumerate(lengths)
    ]


def ready(folder: Path, records: Iterable[Record], **options: object) -> Prepared:
    """The records as prepared data."""
    spec = DataSpec(source=Listed.of(records), tokenizer=Byte(), **options)  # type: ignore[arg-type]
    return prepare(spec, folder, workers=0)
