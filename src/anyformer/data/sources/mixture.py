"""Several sources as one: weights set the share of each source in the text of an epoch.

The source with the most text relative to its weight is read once. Every other source is repeated to reach its share:

times_i = (w_i / size_i) / min_j (w_j / size_j),   size_i: characters of the training records of source i

times_i may be a fraction. A hash then chooses the records of the last repetition, so that an epoch is the same in every
run. Only training records are repeated. A copy is in the same split as its text, and is left out of held-out splits.
"""

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from anyformer.core import Positive
from anyformer.data.preparation.contents import HELD_OUT, digest
from anyformer.data.record import Record, SourceSpec
from anyformer.data.sources.jsonl import JSONLines
from anyformer.data.sources.text import Text
from anyformer.errors import DataError, SpecError

MOST_TIMES = 100
"""Maximum number of times that a source is read in an epoch."""


@dataclass(frozen=True, kw_only=True)
class MixtureSource(SourceSpec, kind="mixture"):
    """Several sources with weights; their records have the same fields."""

    sources: tuple[SourceSpec, ...]
    """The sources, in the order in which they are read."""
    weights: tuple[Positive, ...] = ()
    """Relative share of each source in the training text of an epoch; with [2, 1] two thirds come from the first. A
    source with too little text for its share is repeated. Default: each source is read once."""

    @classmethod
    def examples(cls) -> "tuple[MixtureSource, ...]":
        return (cls(sources=(Text(path="book.txt"), JSONLines(path="news.jsonl")), weights=(2.0, 1.0)),)

    def check(self) -> None:
        if not self.sources:
            raise SpecError("sources: is empty. Name at least one source.")
        if len(self.weights) not in (0, len(self.sources)):
            raise SpecError(
                f"weights: {len(self.weights)} for {len(self.sources)} sources. Give one for each, or none."
            )

    def records(self) -> Iterator[Record]:
        self._check_forms()
        for source, times in zip(self.sources, self.times(), strict=True):
            for repetition in range(math.ceil(times)):
                yield from _repeated(source, repetition, times - repetition)

    def times(self) -> list[float]:
        """Number of times that each source is read in an epoch, which may be a fraction."""
        if not self.weights:
            return [1.0] * len(self.sources)
        sizes = [sum(_size(record) for record in source.records()) for source in self.sources]
        if 0 in sizes:
            raise DataError(f"data.source.sources[{sizes.index(0)}]: has no text to train on. Leave it out.")
        needs = [weight / size for weight, size in zip(self.weights, sizes, strict=True)]
        times = [round(need / min(needs), 6) for need in needs]
        if max(times) > MOST_TIMES:
            place = times.index(max(times))
            raise SpecError(
                f"data.source.weights[{place}]: to have its share, the source of {sizes[place]:,} characters would be "
                f"read {max(times):,.0f} times in an epoch, and at most {MOST_TIMES} are allowed. Lower its weight."
            )
        return times

    def fingerprint(self) -> str:
        parts = [self.kind, self.weights, [source.fingerprint() for source in self.sources]]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def files(self) -> dict[str, Path]:
        files = [source.files() for source in self.sources]
        if not all(files):  # the fingerprint of a source without files is always computed
            return {}
        return {f"{place}/{name}": file for place, each in enumerate(files) for name, file in each.items()}

    def warnings(self) -> list[str]:
        warnings = [warning for source in self.sources for warning in source.warnings()]
        first = [next(iter(source.records())).split for source in self.sources]
        if None in first and any(first):
            without, named = first.index(None), next(place for place, split in enumerate(first) if split)
            text = f"data.source.sources[{without}]: names no splits, but sources[{named}] does"
            warnings.append(f"{text}: all of the first is trained on. data.split=fraction splits both by a hash.")
        return warnings

    def _check_forms(self) -> None:
        """Raises SpecError unless the first records of all sources have the same fields."""
        forms = [_form(next(iter(source.records()), None)) for source in self.sources]
        for place, form in enumerate(forms):
            if form != forms[0]:
                raise SpecError(
                    f"data.source.sources[{place}]: its records are {form}, those of sources[0] are {forms[0]}. All "
                    f"sources of a mixture must have the same form. Name the columns, or leave one of them out."
                )


def _repeated(source: SourceSpec, repetition: int, share: float) -> Iterator[Record]:
    """All records of a source (repetition 0), or a share of its training records, chosen by a hash. A piece of a text
    continues the piece before it only if that piece was chosen, too."""
    before = False
    for record in source.records():
        chosen = not repetition or (record.split not in HELD_OUT and digest(record.text, repetition) < share * 2**64)
        if chosen:
            yield replace(record, repeated=repetition > 0, continues=record.continues and before)
        before = chosen


def _size(record: Record) -> int:
    return 0 if record.split in HELD_OUT else record.characters()


def _form(record: Record | None) -> str:
    if record is None:
        return "missing"
    fields = {"targets": record.target, "labels": record.label, "tags": record.tags, "choices": record.choices}
    return " with ".join(["texts", *(name for name, value in fields.items() if value not in (None, ()))])
