"""Prepared data, made once for all runs that share them."""

import atexit
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from filelock import FileLock

from anyformer.data.preparation.pipeline import DataSpec, prepare
from anyformer.data.preparation.prepared import Prepared
from anyformer.errors import DataError

CACHE = Path("~/.cache/anyformer/data")


def prepared_for(spec: DataSpec, cache: Path | None = None, log: Callable[[str], None] = lambda text: None) -> Prepared:
    """The data of a spec, from the cache if they are there; two runs that start together prepare them once."""
    name = spec.fingerprint()[:24]
    root = _writable(cache or CACHE, name, log)
    with FileLock(_lock_file(root, name)):
        if (root / name).is_dir():
            try:
                return _reused(spec, root / name)
            except (DataError, KeyError, TypeError, ValueError, AttributeError) as error:
                log(f"{root / name}: the cached data are damaged ({_first_line(error)}). Preparing them again.")
                shutil.rmtree(root / name)
        prepared = prepare(spec, root / name)
    if spec.fingerprint()[:24] != name:
        counts = prepared.counts["train"]
        log(
            f"the data have changed while they were read. This run uses what was read: {counts['samples']:,} samples, "
            f"{counts['tokens']:,} tokens for training. To read them again, start another run."
        )
    return prepared


def _reused(spec: DataSpec, folder: Path) -> Prepared:
    """The cached data, checked against their manifest; raises whatever is wrong with them."""
    prepared = prepare(spec, folder)
    prepared.contents, prepared.context, prepared.packing, prepared.counts["train"]  # damaged facts raise here
    return prepared


def _first_line(error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else ""
    return text.split(". Prepare the data again")[0] if isinstance(error, DataError) else type(error).__name__


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
