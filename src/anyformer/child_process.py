"""Child processes: they end with their parent, and do not run the user's script again where that can be avoided.

A spawned process imports the script of its parent, `__main__`, so that a call in it that is not under
`if __name__ == "__main__":` would run once more in every process.
"""

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from anyformer.errors import SpecError


@contextmanager
def without_script() -> Iterator[None]:
    """Processes that are started inside do not import the user's script."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def refuse_second_run(call: str) -> None:
    """Raises SpecError in a child process that is importing the user's script."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # as multiprocessing itself tells
        raise SpecError(
            f"{call} was called in a worker process, which imports your script for the kinds that it defines. "
            'Put the call under if __name__ == "__main__":'
        )


def end_with(parent: int) -> None:
    """Ends this process as soon as its parent, `os.getpid()` there, has ended."""
    threading.Thread(target=_watch, args=(parent,), daemon=True, name="watch parent").start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
