"""The source that a word on the command line names: a path to data, or a built-in source."""

from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

from anyformer.core import Spec, decode
from anyformer.core.discovery import discover
from anyformer.core.fields import did_you_mean
from anyformer.data.preparation.contents import Contents, ContentsCollector
from anyformer.data.preparation.pipeline import DataSpec
from anyformer.data.record import SourceSpec
from anyformer.data.sources.guess import HUB, guess
from anyformer.data.sources.mixture import MixtureSource
from anyformer.errors import DataError

_PEEK = 200
NOTHING: Mapping[str, Any] = {}


def source_of(target: str, options: Mapping[str, Any] = NOTHING) -> SourceSpec:
    """The source of a path or of a built-in name, with `options` of the user; a file of that name comes first."""
    if Path(target).exists() or target.startswith(HUB):
        return guess(target, options)
    known = built_in()
    if target in known:
        return decode(SourceSpec, {"kind": target})
    try:
        return guess(target, options)
    except DataError as error:
        near = did_you_mean(target, known) if "/" not in target and "." not in target else ""
        raise DataError(f"{error}{near and f' Nor is it a built-in source.{near}'}") from None


def built_in() -> list[str]:
    """The sources that need no options."""
    discover()
    return [
        kind
        for kind, cls in SourceSpec.kinds.items()
        if all((field.default, field.default_factory) != (MISSING, MISSING) for field in fields(cls))
    ]


def is_data(target: str) -> bool:
    """True if a word on the command line names data: an existing path, a Hub data set or a built-in source."""
    return Path(target).exists() or target.startswith(HUB) or target in built_in()


def usual_tokenizer(kind: object) -> dict[str, Any]:
    """The default tokenizer of a kind of source."""
    discover()
    known = SourceSpec.kinds.get(str(kind), SourceSpec)
    assert issubclass(known, SourceSpec)
    return dict(known.usual_tokenizer)


def peek(source: SourceSpec) -> Contents:
    """The contents by the first records; enough to choose a model and an objective."""
    if source.plain:
        return Contents()
    collector = ContentsCollector()
    for record in islice(source.records(), _PEEK):
        collector.see(record)
    if collector.first is None:
        raise DataError(f"the source {source.kind!r} has no records: is it empty?")
    return collector.close()


def relocated(data: DataSpec, began_in: str | None) -> DataSpec:
    """The same data; a relative path that does not exist here is resolved in the folder where the run began."""
    if began_in is None:
        return data
    return replace(data, source=_moved(data.source, began_in), tokenizer=_moved(data.tokenizer, began_in))


def _moved(spec: Any, began_in: str) -> Any:
    assert isinstance(spec, Spec)
    moved: dict[str, Any] = {}
    if isinstance(spec, MixtureSource):
        moved["sources"] = tuple(_moved(source, began_in) for source in spec.sources)
    for name in {field.name for field in fields(spec)} & {"path", "target_path"}:
        path = getattr(spec, name)
        if path is not None and not Path(path).expanduser().exists() and (Path(began_in) / path).exists():
            moved[name] = str(Path(began_in) / path)
    return replace(spec, **moved)
