"""A random ranking: the control that every other way has to beat."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.core import Amount, Model
from anyformer.shrink.importance import Evidence, Importance
from anyformer.shrink.unit_group import UnitGroup


@dataclass(frozen=True, kw_only=True)
class RandomRanking(Importance, kind="random"):
    """At random: the control that every other way has to beat."""

    seed: Amount = 0
    """Seed of the ranking."""

    def of_units(self, model: Model, groups: Sequence[UnitGroup], evidence: Evidence) -> list[Tensor]:
        rng = torch.Generator().manual_seed(self.seed)
        return [torch.rand(group.count, generator=rng) for group in groups]

    def of_weights(self, model: Model, weights: Sequence[Tensor], evidence: Evidence) -> list[Tensor]:
        rng = torch.Generator().manual_seed(self.seed)
        # a weight that an earlier round removed stays the least important
        return [
            torch.rand(weight.shape, generator=rng).to(weight.device).where(weight != 0, -1.0) for weight in weights
        ]
