"""Prepared data, made once for all runs that share them."""

import fcntl
import hashlib
import json
import os
from pathlib import Path

from anyformer.data.preparation.file_identity import identity, settled
from anyformer.data.preparation.pipeline import DataSpec, prepare
from anyformer.data.preparation.prepared import Prepared
from anyformer.data.record import SourceSpec

CACHE = Path("~/.cache/anyformer/data")


def prepared_for(spec: DataSpec, cache: Path | None = None, fingerprint: str | None = None) -> Prepared:
    """The data of a spec, from the cache if they are there; two runs that start together prepare them once.

    `fingerprint`: that of the spec, if it was just computed. Otherwise the files of the source are hashed once, and
    again if their path, size, time or inode changes.
    """
    root = (cache or CACHE).expanduser()
    root.mkdir(parents=True, exist_ok=True)
    fingerprint = fingerprint or spec.fingerprint(_source_fingerprint(spec.source, root / "sources"))
    name = fingerprint[:24]
    with (root / f"{name}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        return prepare(spec, root / name, fingerprint=fingerprint)


def _source_fingerprint(source: SourceSpec, store: Path) -> str:
    """The fingerprint of a source, stored under the path and the identity of its files."""
    files = {name: (str(file.absolute()), identity(file)) for name, file in source.files().items()}
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
