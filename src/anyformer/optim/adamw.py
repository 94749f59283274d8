"""Adam with decoupled weight decay.

m <- b1 m + (1 - b1) g ; v <- b2 v + (1 - b2) g^2
w <- w - lr (decay w + (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps))
(arXiv 1412.6980, 1711.05101). The original Transformer takes b2 = 0.98 and eps = 1e-9 without decay, under `noam`.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anyformer.core import Chance, Positive
from anyformer.optim.optimizer import Decay, OptimizerSpec


@dataclass(frozen=True, kw_only=True)
class AdamW(OptimizerSpec, kind="adamw"):
    """Adam with decoupled weight decay: the step size does not depend on the scale of the gradients."""

    weight_decay: Decay = 0.1
    """Decoupled weight decay of matrices, multiplied by the learning rate; vectors and embeddings have none."""
    beta1: Chance = 0.9
    """Decay of the mean gradient per step."""
    beta2: Chance = 0.95
    """Decay of the mean squared gradient per step."""
    eps: Positive = 1e-8
    """Added to the denominator to avoid division by zero."""

    @property
    def fan_in_power(self) -> float:
        return 1.0

    def stepper(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        # fused: one pass over memory, on a CPU several times faster than separate tensor operations
        return torch.optim.AdamW(groups, betas=(self.beta1, self.beta2), eps=self.eps, fused=True)

    def fresh(self, parameter: Tensor) -> dict[str, Tensor]:
        return {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
