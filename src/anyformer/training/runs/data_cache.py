"""Prepared data, made once for all runs that share them."""

from pathlib import Path

from filelock import FileLock

from anyformer.data.preparation.pipeline import DataSpec, prepare
from anyformer.data.preparation.prepared import Prepared

CACHE = Path("~/.cache/anyformer/data")


def prepared_for(spec: DataSpec, cache: Path | None = None) -> Prepared:
    """The data of a spec, from the cache if they are there; two runs that start together prepare them once."""
    root = (cache or CACHE).expanduser()
    root.mkdir(parents=True, exist_ok=True)
    name = spec.fingerprint()[:24]
    with FileLock(root / f"{name}.lock"):
        return prepare(spec, root / name)
