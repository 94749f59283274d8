"""A cache of prepared data, shared by all runs with the same data section."""

import atexit
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock

from anyformer.data.preparation.atomic_folder import identity, settled
from anyformer.data.preparation.pipeline import DataSpec, prepare
from anyformer.data.preparation.prepared import Prepared
from anyformer.data.record import SourceSpec
from anyformer.errors import DataError

CACHE = Path("~/.cache/anyformer/data")


def prepared_for(
    spec: DataSpec,
    cache: Path | None = None,
    log: Callable[[str], None] = lambda text: None,
    fingerprint: str | None = None,
) -> Prepared:
    """The data of a spec, from the cache if they are there; two runs that start together prepare them once.

    `fingerprint`: that of the spec, if it was just computed. Otherwise the files of the source are hashed once, and
    again if their path, size, time or inode changes.
    """
    root = _writable(cache or CACHE, log)
    files = _identities(spec.source)
    fingerprint = fingerprint or spec.fingerprint(_source_fingerprint(spec.source, files, root / "sources"))
    folder = root / fingerprint[:24]
    with FileLock(folder.with_suffix(".lock")):
        if folder.is_dir():
            try:
                prepared = prepare(spec, folder, fingerprint=fingerprint)
                # Reading damaged facts raises an error.
                prepared.contents, prepared.context, prepared.packing, prepared.counts["train"]
                return prepared
            except (DataError, KeyError, TypeError, ValueError, AttributeError) as error:
                text = str(error).split("\n")[0].split(". Prepare the data again")[0]
                why = text if isinstance(error, DataError) else type(error).__name__
                log(f"{folder}: the cached data are damaged ({why}). Preparing them again.")
                shutil.rmtree(folder)
        prepared = prepare(spec, folder, fingerprint=fingerprint)
    if _identities(spec.source) != files:
        counts = prepared.counts["train"]
        log(
            f"the data have changed while they were read. This run uses what was read: {counts['samples']:,} samples, "
            f"{counts['tokens']:,} tokens for training. To read them again, start another run."
        )
    return prepared


def _writable(cache: Path, log: Callable[[str], None]) -> Path:
    """The cache; if it cannot be written, a temporary folder that is removed at the end of this process."""
    try:
        root = cache.expanduser()
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            return root
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home folder
        root = Path(tempfile.mkdtemp(prefix="anyformer-"))
        atexit.register(partial(shutil.rmtree, root, ignore_errors=True))
        reason = error.strerror if isinstance(error, OSError) else error
        log(f"{cache}: the cache cannot be written ({reason}). Prepared data go to a temporary folder, {root}.")
        return root


def _identities(source: SourceSpec) -> dict[str, tuple[str, Any]]:
    """Path, size, time and inode of the files of a source: they change when a file does."""
    return {name: (str(file.absolute()), identity(file)) for name, file in source.files().items()}


def _source_fingerprint(source: SourceSpec, files: dict[str, tuple[str, Any]], store: Path) -> str:
    """The fingerprint of a source, stored under the path and the identity of its files."""
    if not files:
        return source.fingerprint()
    key = hashlib.sha256(json.dumps([source.to_dict(), files], sort_keys=True).encode()).hexdigest()
    entry = store / key[:32]
    if entry.is_file():
        return entry.read_text(encoding="ascii")
    fingerprint = source.fingerprint()
    if settled(each for _, each in files.values()):
        store.mkdir(exist_ok=True)
        partial = store / f"{entry.name}.{os.getpid()}"
        partial.write_text(fingerprint, encoding="ascii")
        os.replace(partial, entry)  # another process never reads half of it
    return fingerprint
