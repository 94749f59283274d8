"""What a word on the command line names: a path to data, or a source that is built in."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from itertools import islice
from pathlib import Path
from typing import Any

from anyformer.core import decode
from anyformer.core.discovery import discover
from anyformer.core.fields import did_you_mean
from anyformer.data.preparation.contents import Contents, ContentsCollector
from anyformer.data.record import SourceSpec
from anyformer.data.sources.guess import HUB, guess
from anyformer.errors import DataError

_PEEK = 200
NOTHING: Mapping[str, Any] = {}


def source_of(target: str, told: Mapping[str, Any] = NOTHING) -> SourceSpec:
    """The source that a path or a name stands for, knowing what was `told` of it; a file of that name comes first."""
    if Path(target).exists() or target.startswith(HUB):
        return guess(target, told)
    known = built_in()
    if target in known:
        return decode(SourceSpec, {"kind": target})
    try:
        return guess(target, told)
    except DataError as error:
        near = did_you_mean(target, known) if "/" not in target and "." not in target else ""
        raise DataError(f"{error}{near and f' Nor is it a built-in source.{near}'}") from None


def built_in() -> list[str]:
    """The sources that need not be told anything."""
    discover()
    ours = SourceSpec.kinds.items()
    return [
        kind for kind, cls in ours if all((it.default, it.default_factory) != (MISSING, MISSING) for it in fields(cls))
    ]


def usual_tokenizer(kind: object) -> dict[str, Any]:
    """What to read a kind of source with."""
    discover()
    known = SourceSpec.kinds.get(str(kind), SourceSpec)
    assert issubclass(known, SourceSpec)
    return dict(known.usual_tokenizer)


def peek(source: SourceSpec) -> Contents:
    """What the first records hold; enough to choose a model and an objective."""
    look, found = ContentsCollector(), False
    for record in islice(source.records(), _PEEK):
        look.see(record, "train")
        found = True
    if not found:
        raise DataError(f"the source {source.kind!r} has no records: is it empty?")
    return look.close()
