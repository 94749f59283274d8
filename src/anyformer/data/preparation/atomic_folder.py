"""Atomic folders: written beside their place, and moved there when they are complete.

Whoever writes holds a lock, which the system lets go when the process ends, however it ends: what a killed one has left
behind is known by that, and the next one takes it away.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows: nothing is locked there, and nothing taken away
    fcntl = None

LOCK = "lock"


@contextmanager
def in_place_of(folder: Path) -> Iterator[Path]:
    """A new folder that replaces `folder` when the block ends without an error, and is removed otherwise."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{folder.name}.preparing-"
    for other in folder.parent.glob(f"{_literal(prefix)}*"):
        _remove_if_left(other)
    work = Path(mkdtemp(prefix=prefix, dir=folder.parent))
    fresh = work / "new"
    try:
        with _locked(work):
            fresh.mkdir()
            yield fresh
            _sync(fresh)
            if folder.exists():
                os.replace(folder, work / "old")
            os.replace(fresh, folder)
            _sync(folder.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def _locked(work: Path) -> Iterator[None]:
    with (work / f"{LOCK}.new").open("w") as file:
        if fcntl:
            fcntl.flock(file, fcntl.LOCK_EX)
        os.replace(file.name, work / LOCK)  # whoever sees it sees it locked
        yield


def _remove_if_left(work: Path) -> None:
    """Removes a work folder whose process has ended."""
    with suppress(OSError):  # it is locked, or not ours, or another process takes it away just now
        if fcntl:
            with (work / LOCK).open("r+") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(work)


def _literal(name: str) -> str:
    """The name with its pattern characters escaped."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
