"""Child processes that end when their parent does, also when it was killed and could not stop them."""

import os
import threading
import time


def end_with(parent: int) -> None:
    """Ends this process as soon as its parent, `os.getpid()` there, has ended."""
    threading.Thread(target=_watch, args=(parent,), daemon=True, name="watch parent").start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
