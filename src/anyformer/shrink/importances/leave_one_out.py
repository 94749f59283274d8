"""Leave-one-out: the loss on training data without a unit, minus the loss with all of them.

I_h = L(xi_h = 0) - L          (arXiv 1905.10650, section 3)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.core import Count, Model
from anyformer.errors import SpecError
from anyformer.shrink.importance import Evidence, Importance
from anyformer.shrink.unit_group import UnitGroup


@dataclass(frozen=True, kw_only=True)
class LeaveOneOut(Importance, kind="leave_one_out"):
    """By the rise of the loss without the unit, on training data: one pass over the batches for each unit."""

    batches: Count = 4
    """Batches of training data."""

    def of_units(self, model: Model, groups: Sequence[UnitGroup], evidence: Evidence) -> list[Tensor]:
        whole = evidence.mean_loss(model, self.batches)
        return [torch.tensor([self._without(model, group, unit, evidence) - whole for unit in range(group.count)])
                for group in groups]  # fmt: skip

    def of_weights(self, model: Model, weights: Sequence[Tensor], evidence: Evidence) -> list[Tensor]:
        raise SpecError("--by leave_one_out: a pass over the data for each single weight would take too long. "
                        "Use --by magnitude or --by taylor.")  # fmt: skip

    def _without(self, model: Model, group: UnitGroup, unit: int, evidence: Evidence) -> float:
        with group.without(unit):
            return evidence.mean_loss(model, self.batches)
