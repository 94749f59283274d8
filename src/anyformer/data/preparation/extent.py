"""How much data a source has: records, characters and the usual length, counted before anything is prepared."""

from array import array
from dataclasses import dataclass

import numpy as np

from anyformer.data.preparation.contents import Contents, ContentsCollector
from anyformer.data.record import SourceSpec
from anyformer.errors import DataError

MOST = 1 << 24
"""Characters that are read at most: defaults do not depend on how much more there is."""


@dataclass(frozen=True)
class Extent:
    """The form and the amount of the records of a source."""

    contents: Contents
    records: int
    characters: int
    long: int
    """Characters of a record (the longer side of a pair) that 95% of the records do not exceed."""
    more: bool
    """True if the source has more than was counted."""


def measure(source: SourceSpec) -> Extent:
    """Counts the records of a source, up to `MOST` characters."""
    collector, lengths, characters = ContentsCollector(), array("q"), 0
    for record in source.records():
        if characters > MOST:
            break
        collector.see(record)
        lengths.append(max(len(record.text), len(record.target or "")))
        characters += record.characters()
    if not lengths:
        raise DataError(f"the source {source.kind!r} has no records: is it empty?")
    long = int(np.quantile(np.frombuffer(lengths, dtype=np.int64), 0.95))
    return Extent(collector.close(), len(lengths), characters, long, characters > MOST)
