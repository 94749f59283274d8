"""A parallel map over processes, with results in the order of the items.

A few pieces are under way at any time, so memory stays bounded. A process that dies stops everything at the next
result; processes whose parent died end by themselves.
"""

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from anyformer.errors import WorkerError

T = TypeVar("T")
R = TypeVar("R")

_WORK: list[Callable[[Any], Any]] = []  # what a worker does, told once when it starts


def in_order(work: Callable[[T], R], items: Iterable[T], workers: int, ahead: int = 2) -> Iterator[R]:
    """work(item) for every item, in order; each of `workers` processes computes up to `ahead` items in advance."""
    waiting: deque[Future[R]] = deque()
    pool = ProcessPoolExecutor(workers, initializer=_start, initargs=(work, os.getpid()))
    try:
        for item in items:
            waiting.append(pool.submit(_do, item))
            if len(waiting) > ahead * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise WorkerError(
            f"one of the {workers} processes that read the data was killed, perhaps for lack of memory. "
            "Go on with fewer of them, or with none: workers=0."
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _start(work: Callable[[Any], Any], parent: int) -> None:
    _WORK[:] = [work]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _do(item: Any) -> Any:
    return _WORK[0](item)
