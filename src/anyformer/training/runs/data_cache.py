"""Prepared data, made once for all runs that share them."""

import fcntl
from pathlib import Path

from anyformer.data.preparation.pipeline import DataSpec, prepare
from anyformer.data.preparation.prepared import Prepared

CACHE = Path("~/.cache/anyformer/data")


def prepared_for(spec: DataSpec, cache: Path | None = None) -> Prepared:
    """The data of a spec, from the cache if they are there; two runs that start together prepare them once."""
    root = (cache or CACHE).expanduser()
    root.mkdir(parents=True, exist_ok=True)
    name = spec.fingerprint()[:24]
    with (root / f"{name}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        return prepare(spec, root / name)
