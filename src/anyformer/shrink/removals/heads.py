"""Whole attention heads: their rows of W_q, W_k, W_v and their columns of W_o go. Every layer loses as many."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from anyformer.core import Model, ModelSpec
from anyformer.shrink.removal import RemainingUnits, Removal, part_groups, smaller_parts
from anyformer.shrink.unit_group import UnitGroup


@dataclass(frozen=True, kw_only=True)
class HeadRemoval(Removal, kind="heads"):
    """Attention heads; query heads that share keys and values go together."""

    def groups(self, spec: ModelSpec, model: Model) -> Sequence[UnitGroup]:
        return part_groups(model, "heads")

    def smaller(self, spec: ModelSpec, model: Model, remaining: RemainingUnits) -> tuple[ModelSpec, dict[str, Tensor]]:
        return smaller_parts(spec, model, remaining)
