"""Relative paths of a run's data, found again from another folder than the one in which the run began."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from anyformer.core import Spec
from anyformer.data.preparation.pipeline import DataSpec

PATHS = ("path", "target_path")


def relocated(data: DataSpec, began_in: str | None) -> DataSpec:
    """The same data; a relative path that leads nowhere from here is taken from the folder where the run began."""
    if began_in is None:
        return data
    return replace(data, source=_moved(data.source, began_in), tokenizer=_moved(data.tokenizer, began_in))


def _moved(spec: Any, began_in: str) -> Any:
    assert isinstance(spec, Spec)
    named = {field.name: getattr(spec, field.name) for field in fields(spec) if field.name in PATHS}
    moved = {name: _found(path, began_in) for name, path in named.items() if isinstance(path, str)}
    return replace(spec, **moved)


def _found(path: str, began_in: str) -> str:
    elsewhere = Path(began_in) / path
    return str(elsewhere) if not Path(path).expanduser().exists() and elsewhere.exists() else path
