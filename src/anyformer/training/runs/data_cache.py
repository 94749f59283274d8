"""Prepared data, made once for all runs that share them."""

import atexit
import fcntl
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from anyformer.data.preparation.pipeline import DataSpec, prepare
from anyformer.data.preparation.prepared import Prepared

CACHE = Path("~/.cache/anyformer/data")


def prepared_for(spec: DataSpec, cache: Path | None = None, log: Callable[[str], None] = lambda text: None) -> Prepared:
    """The data of a spec, from the cache if they are there; two runs that start together prepare them once."""
    name = spec.fingerprint()[:24]
    root = _writable(cache or CACHE, name, log)
    with _lock_file(root, name).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        return prepare(spec, root / name)


def _writable(cache: Path, name: str, log: Callable[[str], None]) -> Path:
    """The cache; where it cannot be written, a temporary folder that goes with this process."""
    try:
        root = cache.expanduser()
        root.mkdir(parents=True, exist_ok=True)
        with _lock_file(root, name).open("a"):
            return root
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home folder
        root = Path(tempfile.mkdtemp(prefix="anyformer-"))
        atexit.register(partial(shutil.rmtree, root, ignore_errors=True))
        reason = error.strerror if isinstance(error, OSError) else error
        log(f"{cache}: the cache cannot be written ({reason}). Prepared data go to a temporary folder, {root}.")
        return root


def _lock_file(root: Path, name: str) -> Path:
    return root / f"{name}.lock"
