"""Attention under a causal window against torch's kernels: `python -m benchmarks.blocked_attention`

Ours runs by blocks on a CPU. On a GPU it is a kernel of our own inside graphs, and flash attention's window out of
them. Peers: full causal attention, which looks at more, and (on a CPU) the same rule as a written-out mask. The answers
are compared with the written-out mask on a shorter row.

Training on a GPU is measured as the trainer does it with what is as small as this: compiled and recorded as a CUDA
graph, ours and the peer; and besides call by call, where a good part of the time passes before a kernel begins.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core import Causal, Marks
from anyformer.core.masks import dense
from anyformer.ops.attention.attend import dispatch
from anyformer.ops.attention.call import AttentionCall
from anyformer.parts.masks.window import Window
from benchmarks.agreement import agree
from benchmarks.clock import Run
from benchmarks.harness import Bench, Case, Contender, Size, built, compare
from benchmarks.rows import Row
from benchmarks.runner import single

SIZES: dict[Size, dict[str, int]] = {
    "gpu": {"length": 16384, "window": 256, "heads": 12, "channels": 64},
    "cpu": {"length": 4096, "window": 256, "heads": 8, "channels": 64},
    "tiny": {"length": 512, "window": 32, "heads": 2, "channels": 16},
}
CHECKED = 1024
Look = Callable[[Tensor, Tensor, Tensor], Tensor]


def rows(bench: Bench) -> Iterator[Row]:
    size, dtype = SIZES[bench.size], torch.bfloat16 if bench.device.type == "cuda" else torch.float32
    given = inputs(size["length"], size, bench.device, dtype)
    looks: dict[str, Look] = {"full causal": full}
    if bench.device.type == "cpu":
        looks["written-out mask"] = masked(size["length"], size["window"], bench.device)
    pairs = size["length"] * size["window"] - size["window"] * (size["window"] - 1) / 2
    flops = 14 * pairs * size["heads"] * size["channels"]  # two products forward, five backward
    for what, form, share in _forms(bench.device):
        made = partial(contender, bench.device, form, given)
        check = partial(same, size, bench.device, dtype, torch.compile if form is recorded else lambda look: look)
        yield from compare(bench, Case(
            item="window", shape={"of": what, **size}, flops=share * flops, check=check,
            ours=made(windowed(size["length"], size, bench.device)),
            peers={name: made(look) for name, look in looks.items()},
        ))  # fmt: skip


def contender(
    device: torch.device, form: Callable[[Look, list[Tensor]], Run], given: list[Tensor], look: Look
) -> Contender:
    """What lies in recorded graphs is not known."""
    found = built(device, lambda: form(look, given))
    return replace(found, resident=None if form is recorded else 0)


def _forms(device: torch.device) -> list[tuple[str, Callable[[Look, list[Tensor]], Run], float]]:
    """What is measured, how it is run, and which share of all operations that takes."""
    whole = [("training", trained, 1.0)]
    if device.type == "cuda":
        whole = [("training", recorded, 1.0), ("training, call by call", trained, 1.0)]
    return [*whole, ("forward", forward, 4 / 14)]


def inputs(length: int, size: dict[str, int], device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    """Queries, keys and values [b t h c]."""
    shape = (1, length, size["heads"], size["channels"])
    return [torch.randn(shape, device=device, dtype=dtype).requires_grad_() for _ in range(3)]


def windowed(length: int, size: dict[str, int], device: torch.device) -> Look:
    marks = Marks(torch.arange(length, device=device)[None])
    sight = AttentionCall(Window(size=size["window"]) & Causal(), marks, marks, plain=True)
    return lambda q, k, v: dispatch(q, k, v, sight, scale=size["channels"] ** -0.5)


def full(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def masked(length: int, window: int, device: torch.device) -> Look:
    mask = dense(Window(size=window) & Causal(), length, length).to(device)

    def look(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2)

    return look


def trained(look: Look, given: list[Tensor]) -> Run:
    slope = torch.randn_like(given[0])
    return lambda: torch.autograd.grad(look(*given), given, slope)


def recorded(look: Look, given: list[Tensor]) -> Run:
    """Compiled, then asked for as a whole."""
    run, stream = trained(torch.compile(look), given), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run()
    return graph.replay


def forward(look: Look, given: list[Tensor]) -> Run:
    fixed = [x.detach() for x in given]
    return lambda: look(*fixed)


def same(size: dict[str, int], device: torch.device, dtype: torch.dtype, made: Callable[[Look], Look]) -> bool:
    """Values and gradients, of ours as it is made."""
    length = min(CHECKED, size["length"])
    given = inputs(length, size, device, dtype)
    slope = torch.randn_like(given[0])
    ours, theirs = made(windowed(length, size, device)), masked(length, size["window"], device)
    found = [(y, *torch.autograd.grad(y, given, slope)) for y in (ours(*given), theirs(*given))]
    return agree(*found)


if __name__ == "__main__":
    single(__doc__, rows)
