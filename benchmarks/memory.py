"""Bytes of tensors: those that are held now, and the most that a call needs besides."""

import gc
from collections.abc import Callable
from itertools import accumulate

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile


def held(device: torch.device) -> int:
    """The allocator's count on a GPU; on a CPU, which keeps none, that of all tensors that Python knows."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()
    real = (thing for thing in gc.get_objects() if type(thing) in (Tensor, torch.nn.Parameter))  # a compiler's are not
    tensors = [tensor for tensor in real if tensor.device == device]
    return sum({it.untyped_storage().data_ptr(): it.untyped_storage().nbytes() for it in tensors}.values())


def peak(device: torch.device, run: Callable[[], object]) -> int:
    """Of a call, beyond what stood before it. On a CPU the profiler counts, and what it leaves behind changes how fast
    memory is to be had later: so this comes after the clock."""
    if device.type == "cuda":
        before = held(device)
        torch.cuda.reset_peak_memory_stats()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        run()
    assert seen.profiler is not None and seen.profiler.kineto_results is not None
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    totals = accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))
    return max(0, *totals, 0)


def taken_back(device: torch.device) -> int:
    """How often so far there was no memory left, and what others had kept for later had to go: that takes long."""
    return torch.cuda.memory_stats(device).get("num_alloc_retries", 0) if device.type == "cuda" else 0
