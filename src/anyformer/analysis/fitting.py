"""A plain training loop for claims and tests that need a small model of their own and batches drawn on the spot."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn import Parameter

LARGEST_NORM = 1.0


def fit(
    parameters: Iterable[Parameter],
    loss: Callable[[torch.Generator], Tensor],
    *,
    steps: int,
    lr: float,
    seed: int,
    warmup: int = 10,
) -> list[float]:
    """Minimises the loss of batches that are drawn with the seed, and returns the loss of every step.

    AdamW without weight decay, gradients clipped to a norm of 1, a linear warm-up and then a linear decay to 0.
    """
    weights, rng, losses = list(parameters), torch.Generator().manual_seed(seed), []
    optimizer = torch.optim.AdamW(weights, lr=lr, weight_decay=0.0)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, (step + 1) / (warmup + 1)) * (1 - step / steps)
        optimizer.zero_grad()
        value = loss(rng)
        value.backward()
        torch.nn.utils.clip_grad_norm_(weights, LARGEST_NORM)
        optimizer.step()
        losses.append(value.item())
    return losses
