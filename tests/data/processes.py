"""Processes that are forked from this warm one, which saves them the imports, and those that they start in turn."""

import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path


def forked(work: Callable[[], object]) -> int:
    """Does something in a process of its own; its number."""
    process = os.fork()
    if process == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return process


def children(process: int) -> list[Path]:
    return [Path("/proc") / number for number in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def all_gone(processes: list[Path]) -> bool:
    """Whether they end, given the time."""
    deadline = time.monotonic() + 60
    while any(process.exists() for process in processes) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(process.exists() for process in processes)
