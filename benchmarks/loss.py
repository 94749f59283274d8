"""The chunked loss over a vocabulary against `cross_entropy(linear(x, w))`, forward and backward: time and memory.

`python -m benchmarks.loss`. Values and gradients are compared first. On a GPU the peer is compiled too, as a training
step would have it; transformers' own loss, which makes all logits single precision first, is the plain one. Memory is
what a call takes beside its inputs and the gradients that every form hands back.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core import LogitProduct
from anyformer.ops.loss import cross_entropy
from benchmarks.agreement import agree
from benchmarks.harness import Bench, Case, Contender, Size, compare
from benchmarks.rows import Row
from benchmarks.runner import single

SIZES: dict[Size, dict[str, int]] = {
    "gpu": {"tokens": 16384, "dim": 1024, "vocab": 131072},
    "cpu": {"tokens": 2048, "dim": 256, "vocab": 32768},
    "tiny": {"tokens": 64, "dim": 16, "vocab": 256},
}
Score = Callable[[], Tensor]


def rows(bench: Bench) -> Iterator[Row]:
    size, on_gpu = SIZES[bench.size], bench.device.type == "cuda"
    dtype = torch.bfloat16 if on_gpu else torch.float32
    x = torch.randn(size["tokens"], size["dim"], device=bench.device, dtype=dtype).requires_grad_()
    w = torch.randn(size["vocab"], size["dim"], device=bench.device, dtype=dtype).mul_(0.05).requires_grad_()
    targets = torch.randint(size["vocab"], (size["tokens"],), device=bench.device)
    ones = torch.ones(size["tokens"], device=bench.device)

    def chunked() -> Tensor:
        return cross_entropy(LogitProduct(x, w), targets, ones)

    def plain() -> Tensor:
        return F.cross_entropy(F.linear(x, w).float(), targets, reduction="sum")

    peers: dict[str, Score] = {"torch": plain} | ({"torch, compiled": torch.compile(plain)} if on_gpu else {})
    yield from compare(bench, Case(
        item="loss", shape=size, amount=size["tokens"], unit="token",
        flops=6 * size["tokens"] * size["dim"] * size["vocab"],
        ours=trained(torch.compile(chunked) if on_gpu else chunked, [x, w]),
        peers={name: trained(score, [x, w]) for name, score in peers.items()},
        check=partial(same, chunked, plain, [x, w]),
    ))  # fmt: skip


def trained(score: Score, leaves: list[Tensor]) -> Contender:
    """Gradients are the caller's, so their bytes are taken off."""
    return Contender(lambda: torch.autograd.grad(score(), leaves), resident=-sum(leaf.nbytes for leaf in leaves))


def same(ours: Score, theirs: Score, leaves: list[Tensor]) -> bool:
    """The same value and the same gradients, up to the precision."""
    found = [(loss.to(leaves[0]), *torch.autograd.grad(loss, leaves)) for loss in (ours(), theirs())]
    return agree(*found)


if __name__ == "__main__":
    single(__doc__, rows)
