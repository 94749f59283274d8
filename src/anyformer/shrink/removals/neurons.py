"""Hidden units of feed-forward parts: their rows of W_1 and their columns of W_2 go. Every layer loses as many."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from anyformer.core import Model, ModelSpec
from anyformer.shrink.removal import RemainingUnits, Removal, part_groups, smaller_parts
from anyformer.shrink.unit_group import UnitGroup


@dataclass(frozen=True, kw_only=True)
class NeuronRemoval(Removal, kind="neurons"):
    """Hidden units of feed-forward parts (mlp, glu)."""

    def groups(self, spec: ModelSpec, model: Model) -> Sequence[UnitGroup]:
        return part_groups(model, "neurons")

    def smaller(self, spec: ModelSpec, model: Model, remaining: RemainingUnits) -> tuple[ModelSpec, dict[str, Tensor]]:
        return smaller_parts(spec, model, remaining)
