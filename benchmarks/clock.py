"""Clocks and roofs: how long a call took on a device, and the most that the device can do."""

import time
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch

Run = Callable[[], object]


def clocked(device: torch.device, run: Run) -> tuple[float, object]:
    """Milliseconds of a call, and what it gave."""
    if device.type != "cuda":
        start = time.process_time()
        result = run()
        return 1000 * (time.process_time() - start), result
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    before.record()
    result = run()
    after.record()
    torch.cuda.synchronize()
    return before.elapsed_time(after), result


def wall_s(run: Run) -> float:
    """Seconds by the clock on the wall."""
    start = time.perf_counter()
    run()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter() - start


class Roofs(NamedTuple):
    """What this machine can do at most, measured: arithmetic, and bytes read and written, a second."""

    flops: float
    bytes: float


@lru_cache
def roofs_of(device: torch.device, small: bool = False) -> Roofs:
    """The best of a large matrix product (bf16 on a GPU, fp32 on a CPU), and of a large copy or sum."""
    gpu = device.type == "cuda"
    side, numbers = (64, 1 << 12) if small else (8192, 1 << 30) if gpu else (1536, 1 << 26)
    dtype = torch.bfloat16 if gpu else torch.float32
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    source, target = (torch.empty(numbers, device=device) for _ in range(2))
    product = min(clocked(device, lambda: a @ b)[0] for _ in range(10))
    copied = min(clocked(device, lambda: target.copy_(source))[0] for _ in range(10))
    added = min(clocked(device, lambda: target.add_(source))[0] for _ in range(10))
    return Roofs(2000 * side**3 / product, 1000 * 4 * numbers * max(2 / copied, 3 / added))
