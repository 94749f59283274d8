"""Where the time goes in training and in decoding, ours and transformers': `python -m benchmarks.profiles`

The profiler's own time of every operation (CPU) or kernel (GPU), summed by what it is for. What is left of the time by
the clock is spent between them: in Python, in launches, in waiting.
"""

import re
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from torch.autograd.profiler import DeviceType
from torch.profiler import ProfilerActivity, profile

from anyformer.generation.engine import Engine, Request
from benchmarks import decode as shapes
from benchmarks import lm, trainers, writing
from benchmarks.clock import Run, clocked
from benchmarks.harness import Bench
from benchmarks.rows import Row
from benchmarks.runner import single

GROUPS = {
    "attention": r"attention|flash|fmha|flex|^_step$|^_forward$|^_by_queries$|^_by_keys$",
    "matrix products": r"mm\b|mm_|gemm|nvjet|xmma|cutlass|cublas|aten::linear|aten::bmm|matmul|^_multiply$",
    "optimizer": r"adam|foreach|multi_tensor",
    "norms": r"norm",
    "softmax and loss": r"softmax|cross_entropy|nll|logsumexp|exp_|amax|gather|scatter|^_consume$|^_chunks$|^_rows$",
    "copies and gathers": r"copy|memcpy|cat|clone|contiguous|index|embedding|fill|zero|memset|empty|transpose|view",
}
"""The first that fits counts; the rest is element by element. A whole word is a kernel of ours."""
REST, BETWEEN, CALLS = "element by element", "between operations", 3


def rows(bench: Bench) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        size = lm.SIZES[bench.size]
        trainer = lm.trainer_of(bench, Path(folder), size)
        yield from parts(bench, "training", "ours", trainers.ours(trainer))
        batches, tuned = lm.full_rows(trainer, size), bench.device.type == "cuda"
        yield from parts(
            bench, "training", "transformers", trainers.theirs(partial(lm.peer, size), batches, trainer, tuned=tuned)
        )
    name, batches_of, length, new = writing.GREEDY[bench.size]
    ours, theirs = writing.placed(bench, shapes.twins(name))
    prompts = torch.randint(6, 1000, (batches_of[0], length)).tolist()
    engine, requests = Engine(ours, max_len=length + new), [Request(prompt=row) for row in prompts]
    yield from parts(bench, "decoding", "ours", lambda: engine.generate(requests, max_new=new))
    yield from parts(bench, "decoding", "transformers", partial(writing.written, theirs, prompts, new))


def parts(bench: Bench, work: str, who: str, run: Run) -> Iterator[Row]:
    """A row for each group, the largest first."""
    run()
    whole = min(clocked(bench.device, run)[0] for _ in range(CALLS))
    spent = grouped(bench.device, run)
    busy = sum(spent.values())
    if busy < whole:
        spent[BETWEEN] = whole - busy
    for group, ms in sorted(spent.items(), key=lambda pair: -pair[1]):
        shape = {"work": work, "who": who, "group": group}
        yield Row(item="profile", shape=shape, device=bench.name, ours_ms=ms)


def grouped(device: torch.device, run: Run) -> dict[str, float]:
    """Milliseconds of one call in each group."""
    on_gpu = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as seen:
        began = time.perf_counter()
        ms, _ = clocked(device, run)
        wall_ms = 1000 * (time.perf_counter() - began)
    events = seen.key_averages()
    if on_gpu:
        kernels = (event for event in events if event.device_type == DeviceType.CUDA and not event.is_user_annotation)
        spent = [(event.key, event.self_device_time_total) for event in kernels]
    else:  # the profiler's clock hangs on the wall, and goes on while others have the processor
        share = min(1.0, ms / wall_ms)
        spent = [(event.key, share * event.self_cpu_time_total) for event in events]
    found: dict[str, float] = {}
    for name, us in spent:
        found[group_of(name)] = found.get(group_of(name), 0.0) + us / 1000
    return found


def group_of(name: str) -> str:
    """What an operation or a kernel is for, as far as its name tells."""
    return next((group for group, words in GROUPS.items() if re.search(words, name, re.IGNORECASE)), REST)


if __name__ == "__main__":
    single(__doc__, rows)
