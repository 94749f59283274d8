"""Atomic folders: written beside their place, and moved there when they are complete.

A writer holds a lock, which the system releases when the process ends, however it ends. A work folder whose lock is
free was left by a killed process, and the next writer removes it.
"""

import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

from filelock import FileLock

from anyformer.disk import sync

SETTLED_NS = 2_000_000_000
"""A file that was modified less than this long ago may be modified again without a new time stamp."""


def identity(file: Path) -> list[int]:
    """Size, time of modification and inode of a file."""
    stat = file.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ino]


def settled(identities: Iterable[list[int]]) -> bool:
    """Whether no file was modified so recently that its identity could stay the same in another modification."""
    return max((modified for _, modified, _ in identities), default=0) < time.time_ns() - SETTLED_NS


LOCK = "lock"


@contextmanager
def in_place_of(folder: Path) -> Iterator[Path]:
    """A new folder that replaces `folder` when the block ends without an error, and is removed otherwise."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{folder.name}.preparing-"
    for other in folder.parent.iterdir():
        if other.name.startswith(prefix):
            _remove_if_abandoned(other)
    work, lock = _work_folder(prefix, folder.parent)
    fresh = work / "new"
    try:
        fresh.mkdir()
        yield fresh
        sync(fresh)
        if folder.exists():
            os.replace(folder, work / "old")
        os.replace(fresh, folder)
        sync(folder.parent)
    finally:
        lock.release()
        shutil.rmtree(work, ignore_errors=True)


def _work_folder(prefix: str, parent: Path) -> tuple[Path, FileLock]:
    """An empty folder with its lock held. Another writer may remove it before the lock is taken: try again then."""
    while True:
        work = Path(mkdtemp(prefix=prefix, dir=parent))
        lock = FileLock(work / LOCK)
        with suppress(FileNotFoundError):
            lock.acquire()
            return work, lock


def _remove_if_abandoned(work: Path) -> None:
    """Removes a work folder whose writer has ended."""
    with suppress(OSError):  # it is locked, or not ours, or another process removes it just now
        if (work / LOCK).is_file():
            with FileLock(work / LOCK, timeout=0):
                shutil.rmtree(work, ignore_errors=True)
            shutil.rmtree(work)  # Windows cannot delete the lock while it is held
