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
    """Along the gradient, with momentum."""

    lr: Positive = 0.1
    """Learning rate at its peak; the schedule gives the share of it that each step takes."""
    momentum: Chance = 0.9
    """How much of the last step the next one keeps."""
    nesterov: bool = False
    """Looks ahead: the gradient counts once more, the momentum once less."""

    def check(self) -> None:
        super().check()
        if self.nesterov and not self.momentum:
            raise SpecError(problems=[Problem("nesterov", "looks ahead along the momentum, which is 0.")])

    def stepper(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.SGD(groups, momentum=self.momentum, nesterov=self.nesterov)

    def fresh(self, parameter: Tensor) -> dict[str, Tensor]:
        return {"momentum_buffer": torch.zeros_like(parameter)} if self.momentum else {}
