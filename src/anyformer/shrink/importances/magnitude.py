"""Magnitude: weights near zero change little.

importance of a weight |w| ; of a unit sqrt(mean of w^2) over its weights
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.core import Model
from anyformer.shrink.importance import Evidence, Importance
from anyformer.shrink.unit_group import UnitGroup


@dataclass(frozen=True, kw_only=True)
class Magnitude(Importance, kind="magnitude"):
    """By the size of the weights; needs no data."""

    def of_units(self, model: Model, groups: Sequence[UnitGroup], evidence: Evidence) -> list[Tensor]:
        return [torch.stack([_root_mean_square(weights) for weights in group.weights()]) for group in groups]

    def of_weights(self, model: Model, weights: Sequence[Tensor], evidence: Evidence) -> list[Tensor]:
        return [weight.detach().abs() for weight in weights]


def _root_mean_square(weights: Sequence[Tensor]) -> Tensor:
    return torch.cat([weight.flatten() for weight in weights]).square().mean().sqrt()
