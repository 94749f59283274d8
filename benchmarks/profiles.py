"""Where the time goes in training and in decoding, ours and transformers': `python -m benchmarks.profiles`

The profiler's own time of every operation (CPU) or kernel (GPU), summed by what it is for. What is left of the time is
spent between them: in Python, in launches, in waiting. On a CPU that is the time by the clock; on a GPU the profiler's,
from the first kernel of some calls in a row to the end of the last, without all in which any kernel was at work.
"""

import re
import tempfile
import time
from collections.abc import Iterable, Iterator
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
    "activations": r"sigmoid|tanh|gelu|relu|silu|erf",
    "sums": r"triton_red|reduce_kernel|aten::sum",
    "copies and gathers": r"copy|memcpy|cat|clone|contiguous|index|embedding|fill|zero|memset|empty|transpose|view",
}
"""The first that fits counts; the rest is element by element. A whole word is a kernel of ours."""
REST, BETWEEN = "element by element", "between operations"
CALLS = {"training": 3, "decoding": 1}


def training(bench: Bench) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        size, tuned = lm.SIZES[bench.size], bench.device.type == "cuda"
        trainer = lm.trainer_of(bench, Path(folder), size)
        yield from parts(bench, "training", "ours", trainers.ours(trainer))
        theirs = trainers.theirs(partial(lm.peer, size), lm.full_rows(trainer, size), trainer, tuned=tuned)
        yield from parts(bench, "training", "transformers", theirs)


def decoding(bench: Bench) -> Iterator[Row]:
    name, batches_of, length, new = writing.GREEDY[bench.size]
    ours, theirs = writing.placed(bench, shapes.twins(name))
    prompts = torch.randint(6, 1000, (batches_of[0], length)).tolist()
    engine = Engine(ours, max_len=length + new, steps=writing.steps_of(bench.device))
    requests = [Request(prompt=row) for row in prompts]
    yield from parts(bench, "decoding", "ours", lambda: engine.generate(requests, max_new=new))
    yield from parts(bench, "decoding", "transformers", partial(writing.written, theirs, prompts, new))


def rows(bench: Bench) -> Iterator[Row]:
    yield from training(bench)
    yield from decoding(bench)


def parts(bench: Bench, work: str, who: str, run: Run) -> Iterator[Row]:
    """A row for each group, the largest first."""
    run()
    spent = on_gpu(run, CALLS[work]) if bench.device.type == "cuda" else on_cpu(bench.device, run)
    for group, ms in sorted(spent.items(), key=lambda pair: -pair[1]):
        shape = {"work": work, "who": who, "group": group}
        yield Row(item="profile", shape=shape, device=bench.name, ours_ms=ms)


def on_cpu(device: torch.device, run: Run) -> dict[str, float]:
    """Milliseconds of one call in each group."""
    whole = min(clocked(device, run)[0] for _ in range(3))
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        began = time.perf_counter()
        ms, _ = clocked(device, run)
        wall_ms = 1000 * (time.perf_counter() - began)
    # the profiler's clock hangs on the wall, and goes on while others have the processor
    share = min(1.0, ms / wall_ms)
    spent = summed((event.key, share * event.self_cpu_time_total) for event in seen.key_averages())
    busy = sum(spent.values())
    return spent if busy >= whole else {**spent, BETWEEN: whole - busy}


def on_gpu(run: Run, calls: int) -> dict[str, float]:
    """The same of some calls in a row, by the kernels of a device."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(calls):
            run()
        torch.cuda.synchronize()
    kernels = [it for it in seen.events() if it.device_type == DeviceType.CUDA and not it.is_user_annotation]
    spent = summed((it.name, it.time_range.elapsed_us() / calls) for it in kernels)
    spent[BETWEEN] = idle((it.time_range.start, it.time_range.end) for it in kernels) / calls / 1000
    return spent


def summed(spent: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Milliseconds by group, of names and microseconds."""
    found: dict[str, float] = {}
    for name, us in spent:
        found[group_of(name)] = found.get(group_of(name), 0.0) + us / 1000
    return found


def idle(spans: Iterable[tuple[float, float]]) -> float:
    """From the first start to the last end, all that lies in none of the spans."""
    total, until = 0.0, None
    for start, end in sorted(spans):
        total += 0.0 if until is None else max(0.0, start - until)
        until = end if until is None else max(until, end)
    return total


def group_of(name: str) -> str:
    """What an operation or a kernel is for, as far as its name tells."""
    return next((group for group, words in GROUPS.items() if re.search(words, name, re.IGNORECASE)), REST)


if __name__ == "__main__":
    single(__doc__, rows)
