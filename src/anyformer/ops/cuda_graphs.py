"""CUDA graphs of plain torch code, and the check whether code can be captured at all."""

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from anyformer.ops.devices import on_gpu


class GraphPool:
    """Captures functions as CUDA graphs in one pool of memory, of which only one runs at a time."""

    def __init__(self) -> None:
        self._pool: Any = None

    def capture(self, body: Callable[[], None]) -> Callable[[], None]:
        """Captures what the body launches, without running it, and returns what replays it. Tensors that the body
        leaves keep their addresses."""
        graph = torch.cuda.CUDAGraph()
        # errors of this thread alone: another thread may pin memory meanwhile
        with uncollected(), torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            body()
        self._pool = self._pool or graph.pool()
        return graph.replay


@contextmanager
def uncollected() -> Iterator[None]:
    """Inside the context, Python collects no garbage: a graph that is destroyed during a capture ends the capture, and
    graphs are often part of reference cycles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def waiting_forbidden(device: torch.device) -> Iterator[None]:
    """Inside the context, torch raises RuntimeError ("synchronizing") where the host would wait for the GPU."""
    if not on_gpu(device):
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
