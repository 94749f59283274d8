"""Sliding-window attention by blocks against torch's own kernels on the CPU: `python -m benchmarks.blocked_attention`.

Forward and backward on one thread. The contenders take turns, each round once, and the best round of each counts: what
else the machine does then harms all alike. Printed: seconds, and how many times faster the blocks are.
"""

import argparse
import json
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core import Causal, Marks
from anyformer.core.masks import dense
from anyformer.ops.attention import attend
from anyformer.ops.blocked import worth_blocking
from anyformer.ops.sight import Sight
from anyformer.parts.masks.window import Window

Run = Callable[[], Tensor]


def contenders(length: int, window: int, heads: int, channels: int) -> tuple[dict[str, Run], list[Tensor]]:
    """Three ways to attend, and the tensors [b t h c] that they read."""
    inputs = [torch.randn(1, length, heads, channels, requires_grad=True) for _ in range(3)]
    q, k, v = (x.transpose(1, 2) for x in inputs)
    rule, marks = Window(size=window) & Causal(), Marks(torch.arange(length)[None])
    sight, mask = Sight(rule, marks, marks, plain=True), dense(rule, length, length)
    if not worth_blocking(sight, length):
        raise SystemExit(f"a window of {window} over {length} tokens does not run by blocks; nothing to measure.")
    runs: dict[str, Run] = {
        "blocked": lambda: attend(*inputs, sight, scale=channels**-0.5),
        "full_causal": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2),
        "dense_mask": lambda: F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2),
    }
    return runs, inputs


def check(runs: dict[str, Run], inputs: list[Tensor], weight: Tensor) -> None:
    """Blocks and dense mask give the same values and gradients."""
    ours, theirs = (runs[name]() for name in ("blocked", "dense_mask"))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    gradients = (torch.autograd.grad((y * weight).sum(), inputs) for y in (ours, theirs))
    for mine, other in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-4, rtol=1e-3)


def best_seconds(runs: dict[str, Run], inputs: list[Tensor], weight: Tensor, rounds: int) -> dict[str, list[float]]:
    """Name -> [forward, forward and backward]: the best CPU time of all rounds."""
    best = {name: [float("inf"), float("inf")] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.process_time()
            y = run()
            forward = time.process_time() - start
            torch.autograd.grad(y, inputs, weight)
            both = time.process_time() - start
            best[name] = [min(old, new) for old, new in zip(best[name], (forward, both), strict=True)]
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=4096, help="tokens")
    parser.add_argument("--window", type=int, default=256, help="reach of the window")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--channels", type=int, default=64, help="per head")
    parser.add_argument("--rounds", type=int, default=5, help="the best of so many counts")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    runs, inputs = contenders(options.length, options.window, options.heads, options.channels)
    weight = torch.randn_like(inputs[0])
    check(runs, inputs, weight)
    best = best_seconds(runs, inputs, weight, options.rounds)
    ratios = {
        f"{what}_over_{name}": round(best[name][index] / best["blocked"][index], 2)
        for index, what in enumerate(("forward", "training"))
        for name in ("full_causal", "dense_mask")
    }
    seconds = {name: [round(value, 4) for value in values] for name, values in best.items()}
    print(json.dumps({**vars(options), "torch": torch.__version__, "seconds": seconds, **ratios}))


if __name__ == "__main__":
    main()
