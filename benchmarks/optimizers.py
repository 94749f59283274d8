"""Muon in batches against torch's, AdamW in its three forms: `python -m benchmarks.optimizers --device cuda`.

The matrices of a GPT-2 of some layers, 124M at the defaults, moved by fixed gradients. The contenders take turns, each
round once, and the best round of each counts. torch's Muon is timed on the tensors as they are, queries, keys and
values in one, and on each matrix by itself, which is what ours computes. Printed: milliseconds a step, and ratios.
"""

import argparse
import json
import time
from collections.abc import Callable

import torch
from torch import nn

from anyformer.core import Role
from anyformer.optim import AdamW, Learned, Muon

Step = Callable[[], object]
Rows = tuple[tuple[Role, int], ...]


def matrices(layers: int, dim: int, device: str) -> list[Learned]:
    """The hidden matrices, with gradients."""
    fused: Rows = (("query", dim), ("key", dim), ("value", dim))
    shapes: tuple[tuple[str, tuple[int, int], Rows], ...] = (
        ("qkv", (3 * dim, dim), fused),
        ("out", (dim, dim), (("out", dim),)),
        ("up", (4 * dim, dim), (("in", 4 * dim),)),
        ("down", (dim, 4 * dim), (("out", dim),)),
    )
    torch.manual_seed(0)
    found = []
    for layer in range(layers):
        for name, shape, rows in shapes:
            tensor = nn.Parameter(torch.randn(shape, device=device) * 0.02)
            tensor.grad = torch.randn_like(tensor)
            found.append(Learned(f"{layer}.{name}", tensor, rows[0][0], rows))
    return found


def apart(found: list[Learned]) -> list[nn.Parameter]:
    """Each matrix by itself."""
    pieces = []
    for one in found:
        assert one.tensor.grad is not None
        for weight, grad in zip(one.matrices(one.tensor.detach()), one.matrices(one.tensor.grad), strict=True):
            pieces.append(nn.Parameter(weight.clone()))
            pieces[-1].grad = grad.clone()
    return pieces


def muons(layers: int, dim: int, device: str) -> dict[str, Step]:
    ours, whole = matrices(layers, dim, device), matrices(layers, dim, device)
    pieces, spec = apart(whole), Muon(lr=0.02)
    options = {"lr": spec.lr, "weight_decay": spec.weight_decay, "adjust_lr_fn": "match_rms_adamw"}
    optimizer, single = spec.build(ours), torch.optim.Muon(pieces, **options)
    optimizer.step(1.0)
    single.step()
    check([part for one in ours for part in one.matrices(one.tensor)], pieces)
    as_stored = torch.optim.Muon([one.tensor for one in whole], **options)
    return {"muon": lambda: optimizer.step(1.0), "torch_fused": as_stored.step, "torch_apart": single.step}


def check(ours: list[torch.Tensor], theirs: list[nn.Parameter]) -> None:
    """Up to the roundings of bf16, in which torch turns, a step is the same."""
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other.detach(), atol=2e-3, rtol=0)


def adamws(layers: int, dim: int, device: str) -> dict[str, Step]:
    ours, steps = matrices(layers, dim, device), {}
    words = nn.Parameter(torch.randn(50257, dim, device=device))
    words.grad = torch.randn_like(words)
    ours.append(Learned("words", words, "embed"))
    optimizer = AdamW().build(ours)
    steps["adamw"] = lambda: optimizer.step(1.0)
    for name, options in {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}.items():
        twins = [nn.Parameter(one.tensor.detach().clone()) for one in ours]
        for twin, one in zip(twins, ours, strict=True):
            twin.grad = one.tensor.grad
        steps[f"torch_{name}"] = torch.optim.AdamW(twins, **options).step
    return steps


def best_ms(steps: dict[str, Step], rounds: int, device: str) -> dict[str, float]:
    best = dict.fromkeys(steps, float("inf"))
    for _ in range(rounds):
        for name, step in steps.items():
            start = now(device)
            step()
            best[name] = min(best[name], 1e3 * (now(device) - start))
    return best


def now(device: str) -> float:
    """Seconds: of this process on the CPU, whatever else runs there; on the wall, when a GPU is done."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--dim", type=int, default=768)
    parser.add_argument("--rounds", type=int, default=10, help="the best of so many counts")
    options = parser.parse_args()
    torch.set_num_threads(1)
    place = (options.layers, options.dim, options.device)
    muon = best_ms(muons(*place), options.rounds, options.device)
    adamw = best_ms(adamws(*place), options.rounds, options.device)
    ratios = {name: round(muon[name] / muon["muon"], 2) for name in muon if name != "muon"}
    ratios |= {f"adamw_{name}": round(adamw[name] / adamw["adamw"], 2) for name in adamw if name != "adamw"}
    told = {name: round(ms, 3) for name, ms in muon.items()} | {f"adamw_{n}": round(ms, 3) for n, ms in adamw.items()}
    print(json.dumps({**vars(options), "torch": torch.__version__, "ms": told, "times_faster": ratios}))


if __name__ == "__main__":
    main()
