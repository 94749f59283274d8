"""Stochastic gradient descent with momentum.

m <- momentum m + g + decay w ; w <- w - lr m          (nesterov: w <- w - lr (g + decay w + momentum m))
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anyformer.core import Chance
from anyformer.core.fields import Positive
from anyformer.errors import Problem, SpecError
from anyformer.optim.optimizer import OptimizerSpec


@dataclass(frozen=True, kw_only=True)
class SGD(OptimizerSpec, kind="sgd"):
    """Stochastic gradient descent with momentum."""

    lr: Positive = 0.1
    """Peak learning rate; the schedule multiplies it by a factor at each step."""
    momentum: Chance = 0.9
    """Decay of the accumulated gradient per step."""
    nesterov: bool = False
    """Whether to use Nesterov momentum."""

    def check(self) -> None:
        super().check()
        if self.nesterov and not self.momentum:
            raise SpecError(problems=[Problem("nesterov", "needs momentum, which is 0. Set momentum=0.9.")])

    def stepper(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.SGD(groups, momentum=self.momentum, nesterov=self.nesterov)

    def fresh(self, parameter: Tensor) -> dict[str, Tensor]:
        return {"momentum_buffer": torch.zeros_like(parameter)} if self.momentum else {}
