"""Lion: the sign of a mean gradient; one state tensor where Adam has two.

w <- w - lr (decay w + sign(b1 m + (1 - b1) g)) ; m <- b2 m + (1 - b2) g          (arXiv 2302.06675)
Every weight moves by the whole learning rate: take a tenth of Adam's, and ten times its decay.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anyformer.core import Chance, Positive
from anyformer.optim.optimizer import Decay, OptimizerSpec


@dataclass(frozen=True, kw_only=True)
class Lion(OptimizerSpec, kind="lion"):
    """Along the sign of a mean gradient: half of Adam's state."""

    lr: Positive = 1e-4
    """Learning rate at its peak; the schedule gives the share of it that each step takes."""
    weight_decay: Decay = 1.0
    """Pull of matrices to zero in each step, as a share of the learning rate; vectors and tables feel none."""
    beta1: Chance = 0.9
    """How much of the mean gradient the direction of a step keeps."""
    beta2: Chance = 0.99
    """How much of the mean gradient is remembered for the next step."""

    def stepper(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return LionStepper(groups, {"beta1": self.beta1, "beta2": self.beta2})

    def fresh(self, parameter: Tensor) -> dict[str, Tensor]:
        return {"exp_avg": torch.zeros_like(parameter)}


class LionStepper(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            moving = [tensor for tensor in group["params"] if tensor.grad is not None]
            if moving:
                self._step(group, moving, [tensor.grad for tensor in moving])

    def _step(self, group: dict[str, Any], tensors: list[Tensor], grads: list[Tensor]) -> None:
        means = [self.state[tensor]["exp_avg"] for tensor in tensors]
        moves = torch._foreach_mul(means, group["beta1"])
        torch._foreach_add_(moves, grads, alpha=1 - group["beta1"])
        for move in moves:
            move.sign_()  # one by one: sharded tensors have no joint form of it
        torch._foreach_mul_(tensors, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(tensors, moves, alpha=-group["lr"])
        torch._foreach_lerp_(means, grads, 1 - group["beta2"])
