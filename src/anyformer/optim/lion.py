"""Lion: steps along the sign of a mean gradient, with one state tensor per parameter where Adam has two.

w <- w - lr (decay w + sign(b1 m + (1 - b1) g)) ; m <- b2 m + (1 - b2) g          (arXiv 2302.06675)
Every weight moves by the full learning rate: use a tenth of Adam's rate and ten times its decay.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anyformer.core import Chance, Positive
from anyformer.optim.optimizer import Decay, OptimizerSpec


@dataclass(frozen=True, kw_only=True)
class Lion(OptimizerSpec, kind="lion"):
    """Steps along the sign of a mean gradient, with half of Adam's state."""

    lr: Positive = 1e-4
    """Peak learning rate; the schedule multiplies it by a factor at each step."""
    weight_decay: Decay = 1.0
    """Decoupled weight decay of matrices, multiplied by the learning rate; vectors and embeddings have none."""
    beta1: Chance = 0.9
    """Weight of the mean gradient in the direction of a step."""
    beta2: Chance = 0.99
    """Decay of the mean gradient per step."""

    @property
    def fan_in_power(self) -> float:
        return 1.0

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
            move.sign_()  # one by one: DTensor does not support _foreach_sign_
        torch._foreach_mul_(tensors, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(tensors, moves, alpha=-group["lr"])
        torch._foreach_lerp_(means, grads, 1 - group["beta2"])
