"""The chunked loss over a vocabulary against torch's `cross_entropy(linear(x, w))`: `python -m benchmarks.loss`.

Forward and backward. Values and gradients are compared first; then the two take turns, and the best round of each
counts. Memory is the peak beyond what stood before the call, of a process for each on the CPU.
With --compiled both are what a compiled training step makes of them.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.ops.loss import cross_entropy

Run = Callable[[], Tensor]
NAMES = ("chunked", "torch")


def contenders(options: argparse.Namespace) -> tuple[dict[str, Run], list[Tensor]]:
    """Two ways to the same number, and what learns."""
    device, dtype = options.device, getattr(torch, options.dtype)
    x = torch.randn(options.tokens, options.dim, device=device, dtype=dtype).requires_grad_()
    w = torch.randn(options.vocab, options.dim, device=device, dtype=dtype).mul_(0.05).requires_grad_()
    targets = torch.randint(options.vocab, (options.tokens,), device=device)
    ones = torch.ones(options.tokens, device=device)

    def chunked() -> Tensor:
        return cross_entropy(x, w, targets, ones, chunk=options.chunk)

    def plain() -> Tensor:
        return F.cross_entropy(F.linear(x, w).float(), targets, reduction="sum")

    runs: dict[str, Run] = {"chunked": chunked, "torch": plain}
    return {name: torch.compile(run) if options.compiled else run for name, run in runs.items()}, [x, w]


def check(runs: dict[str, Run], leaves: list[Tensor]) -> None:
    """The same value and the same gradients."""
    ours, theirs = (runs[name]() for name in NAMES)
    tolerance = 1e-4 if leaves[0].dtype == torch.float32 else 2e-2
    torch.testing.assert_close(ours.float(), theirs.float(), rtol=tolerance, atol=0.0)
    for mine, other in zip(*(torch.autograd.grad(loss, leaves) for loss in (ours, theirs)), strict=True):
        assert (mine - other).abs().max() <= tolerance * other.abs().max()


def best_seconds(runs: dict[str, Run], leaves: list[Tensor], rounds: int) -> dict[str, float]:
    best = dict.fromkeys(runs, float("inf"))
    on_gpu = leaves[0].is_cuda
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.perf_counter() if on_gpu else time.process_time()
            torch.autograd.grad(run(), leaves)
            if on_gpu:
                torch.cuda.synchronize()
            best[name] = min(best[name], (time.perf_counter() if on_gpu else time.process_time()) - start)
    return best


def extra_bytes(name: str, options: argparse.Namespace) -> int:
    """Of one call: what the device counts, or the peak of a process of its own."""
    if options.device == "cpu":
        command = [sys.executable, "-m", "benchmarks.loss", "--memory-of", name, *sys.argv[1:]]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    runs, leaves = contenders(options)
    torch.autograd.grad(runs[name](), leaves)  # a first call may have to compile
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.autograd.grad(runs[name](), leaves)
    return torch.cuda.max_memory_allocated() - before


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def tell_memory(name: str, options: argparse.Namespace) -> None:
    """The peak only grows, so that the call has to be the largest thing that this process does."""
    small = argparse.Namespace(**{**vars(options), "tokens": 2, "vocab": 64})
    runs, leaves = contenders(small)
    torch.autograd.grad(runs[name](), leaves)  # what a first call loads is not the call's
    runs, leaves = contenders(options)
    before = peak_bytes()
    torch.autograd.grad(runs[name](), leaves)
    print(peak_bytes() - before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--vocab", type=int, default=32768)
    parser.add_argument("--chunk", type=int, help="tokens at a time; what suits the device if not given")
    parser.add_argument("--rounds", type=int, default=5, help="the best of so many counts")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--compiled", action="store_true", help="both through torch.compile")
    parser.add_argument("--memory-of", choices=NAMES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if options.memory_of:
        return tell_memory(options.memory_of, options)
    memory = {name: extra_bytes(name, options) for name in NAMES}
    runs, leaves = contenders(options)
    check(runs, leaves)
    best = best_seconds(runs, leaves, options.rounds)
    shape = {name: value for name, value in vars(options).items() if name != "memory_of"}
    result = {
        "torch": torch.__version__,
        "seconds": {name: round(value, 4) for name, value in best.items()},
        "extra_mb": {name: round(value / 1e6, 1) for name, value in memory.items()},
        "times_faster": round(best["torch"] / best["chunked"], 2),
        "times_less_memory": round(memory["torch"] / memory["chunked"], 1),
    }
    print(json.dumps({**shape, **result}))


if __name__ == "__main__":
    main()
