"""Muon in batches against torch's, and AdamW against its three forms: `python -m benchmarks.optimizers --device cuda`

The matrices of a GPT-2 of some layers, 124M on a GPU, moved by fixed gradients. torch's Muon is timed on the tensors as
they are, queries, keys and values in one, and on each matrix by itself, which is what ours computes: there a step must
be the same up to the roundings of bf16, in which torch turns.
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch import nn

from anyformer.core import Role
from anyformer.optim import AdamW, LearnedTensor, Muon
from benchmarks.clock import Run
from benchmarks.harness import Bench, Case, Contender, Size, compare
from benchmarks.rows import Row
from benchmarks.runner import single

SIZES: dict[Size, dict[str, int]] = {
    "gpu": {"layers": 12, "dim": 768, "vocab": 50257},
    "cpu": {"layers": 4, "dim": 256, "vocab": 8192},
    "tiny": {"layers": 1, "dim": 16, "vocab": 32},
}
STATE_BYTES = 28
"""AdamW in single precision for each weight: three tensors read and written, and the gradient read."""
Rows = tuple[tuple[Role, int], ...]


def rows(bench: Bench) -> Iterator[Row]:
    size = SIZES[bench.size]
    yield from compare(bench, muon(bench, size))
    yield from compare(bench, adamw(bench, size))


def muon(bench: Bench, size: dict[str, int]) -> Case:
    ours, whole = (matrices(size, bench.device) for _ in range(2))
    pieces, spec = apart(whole), Muon(lr=0.02)
    options = {"lr": spec.lr, "weight_decay": spec.weight_decay, "adjust_lr_fn": "match_rms_adamw"}
    optimizer, single_steps = spec.build(ours), torch.optim.Muon(pieces, **options)
    as_stored = torch.optim.Muon([one.tensor for one in whole], **options)

    def same() -> bool:
        optimizer.step(1.0)
        single_steps.step()
        mine = [part for one in ours for part in one.matrices(one.tensor)]
        return all((a - b).abs().max() <= 2e-3 for a, b in zip(mine, pieces, strict=True))

    return Case(
        item="muon", shape={"layers": size["layers"], "dim": size["dim"]}, check=same,
        ours=Contender(partial(optimizer.step, 1.0)),
        peers={"torch, fused matrices": Contender(as_stored.step), "torch, each apart": Contender(single_steps.step)},
    )  # fmt: skip


def adamw(bench: Bench, size: dict[str, int]) -> Case:
    ours = matrices(size, bench.device)
    words = nn.Parameter(torch.randn(size["vocab"], size["dim"], device=bench.device))
    words.grad = torch.randn_like(words)
    ours.append(LearnedTensor("words", words, "embed"))
    forms = {"torch, loop": {"foreach": False}, "torch, foreach": {"foreach": True}, "torch, fused": {"fused": True}}
    peers = {name: Contender(torch_adamw(ours, options)) for name, options in forms.items()}
    optimizer = AdamW().build(ours)
    weights = sum(one.tensor.numel() for one in ours)
    ours_run = Contender(partial(optimizer.step, 1.0))
    return Case(item="adamw", shape=size, ours=ours_run, peers=peers, moved=STATE_BYTES * weights)


def torch_adamw(ours: list[LearnedTensor], options: dict[str, bool]) -> Run:
    twins = [nn.Parameter(one.tensor.detach().clone()) for one in ours]
    for twin, one in zip(twins, ours, strict=True):
        twin.grad = one.tensor.grad
    return torch.optim.AdamW(twins, **options).step  # type: ignore[arg-type]


def matrices(size: dict[str, int], device: torch.device) -> list[LearnedTensor]:
    """The hidden matrices, with gradients."""
    dim = size["dim"]
    fused: Rows = (("query", dim), ("key", dim), ("value", dim))
    shapes: tuple[tuple[str, tuple[int, int], Rows], ...] = (
        ("qkv", (3 * dim, dim), fused),
        ("out", (dim, dim), (("out", dim),)),
        ("up", (4 * dim, dim), (("in", 4 * dim),)),
        ("down", (dim, 4 * dim), (("out", dim),)),
    )
    torch.manual_seed(0)
    found = []
    for layer in range(size["layers"]):
        for name, shape, rows in shapes:
            tensor = nn.Parameter(torch.randn(shape, device=device) * 0.02)
            tensor.grad = torch.randn_like(tensor)
            found.append(LearnedTensor(f"{layer}.{name}", tensor, rows[0][0], rows))
    return found


def apart(found: list[LearnedTensor]) -> list[nn.Parameter]:
    """Each matrix by itself."""
    pieces = []
    for one in found:
        assert one.tensor.grad is not None
        for weight, grad in zip(one.matrices(one.tensor.detach()), one.matrices(one.tensor.grad), strict=True):
            pieces.append(nn.Parameter(weight.clone()))
            pieces[-1].grad = grad.clone()
    return pieces


if __name__ == "__main__":
    single(__doc__, rows)
