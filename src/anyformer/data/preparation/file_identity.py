"""What identifies the content of a file without reading it: size, time of modification and inode."""

import time
from collections.abc import Iterable
from pathlib import Path

SETTLED_NS = 2_000_000_000
"""A file that was modified less than this long ago may be modified again without a new time stamp."""


def identity(file: Path) -> list[int]:
    """Size, time of modification and inode of a file."""
    stat = file.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ino]


def settled(identities: Iterable[list[int]]) -> bool:
    """Whether no file was modified so recently that its identity could stay the same in another modification."""
    return max((modified for _, modified, _ in identities), default=0) < time.time_ns() - SETTLED_NS
