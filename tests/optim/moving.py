"""Tensors that move by fixed gradients, and references that move beside them."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from anyformer.core import Role
from anyformer.optim import Cosine, LearnedTensor, Optimizer

STEPS = 25
SCHEDULE = Cosine(warmup=5, floor=0.1)
SHAPES: tuple[tuple[str, Role, tuple[int, ...]], ...] = (
    ("up", "in", (24, 10)),
    ("down", "out", (10, 24)),
    ("look", "query", (30, 10)),
    ("words", "embed", (40, 10)),
    ("gain", "gain", (10,)),
    ("bias", "bias", (24,)),
)
DECAYED = ("up", "down", "look")
QKV: tuple[tuple[Role, int], ...] = (("query", 10), ("key", 10), ("value", 10))


def noise(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def parameters(dtype: torch.dtype = torch.float32) -> list[LearnedTensor]:
    """Of every treatment; `look` holds three matrices in one tensor."""
    return [
        LearnedTensor(name, nn.Parameter(noise(shape, seed).to(dtype)), role, QKV if name == "look" else ())
        for seed, (name, role, shape) in enumerate(SHAPES)
    ]


def set_gradients(tensors: Iterable[Tensor], step: int) -> None:
    for seed, tensor in enumerate(tensors):
        tensor.grad = noise(tuple(tensor.shape), 1000 * (step + 1) + seed).to(tensor.dtype)


def move(optimizer: Optimizer, moved: Sequence[LearnedTensor], steps: Iterable[int] = range(STEPS)) -> None:
    for step in steps:
        set_gradients([one.tensor for one in moved], step)
        optimizer.step(SCHEDULE.factor(step, STEPS))


def move_theirs(step_by: Callable[[float], None], tensors: Sequence[Tensor]) -> None:
    """A reference, told the schedule's factor at each step."""
    for step in range(STEPS):
        set_gradients(tensors, step)
        step_by(SCHEDULE.factor(step, STEPS))


def scheduled(optimizer: torch.optim.Optimizer) -> Callable[[float], None]:
    """One step of torch's, at this share of the rate that each group began with."""
    peaks = [group["lr"] for group in optimizer.param_groups]

    def step_by(factor: float) -> None:
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * factor
        optimizer.step()

    return step_by


def decayed_and_not(moved: Sequence[LearnedTensor], decay: float) -> list[dict[str, object]]:
    """Groups as they should be, by name."""
    return [
        {"params": [one.tensor for one in moved if one.name in DECAYED], "weight_decay": decay},
        {"params": [one.tensor for one in moved if one.name not in DECAYED], "weight_decay": 0.0},
    ]


def assert_same(ours: Sequence[LearnedTensor], theirs: Sequence[LearnedTensor], atol: float = 1e-6) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(
            mine.tensor, other.tensor, atol=atol, rtol=atol, msg=lambda m, n=mine.name: f"{n}: {m}"
        )
