"""Taylor importance: how much the loss changes if a unit's gate moves, to first order.

I_h = E_x |dL(x) / dxi_h|, with xi_h the gate of the unit (arXiv 1905.10650); of a weight E |w dL/dw| (arXiv 1611.06440)
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.core import Count, Model
from anyformer.shrink.importance import Evidence, Importance
from anyformer.shrink.unit_group import UnitGroup


@dataclass(frozen=True, kw_only=True)
class Taylor(Importance, kind="taylor"):
    """By the gradient of the loss with respect to the gate of each unit, on training data."""

    batches: Count = 16
    """Batches of training data."""

    def of_units(self, model: Model, groups: Sequence[UnitGroup], evidence: Evidence) -> list[Tensor]:
        sums, rows = [torch.zeros(group.count) for group in groups], 0
        for batch in evidence.batches(self.batches):
            gates = [GateRecord(group.count) for group in groups]
            with ExitStack() as held:
                for group, gate in zip(groups, gates, strict=True):
                    held.enter_context(group.gated(gate))
                loss = evidence.loss(model, batch)
            used = [gate.values for gate in gates]
            gradients = iter(_gradients(loss, [each for calls in used for each in calls]))
            for total, calls in zip(sums, used, strict=True):
                for _ in calls:  # one for each call of the part: a shared part has several
                    gradient = next(gradients)
                    # The loss is a mean over the batch, so the gradient of one row is that of the row's own loss
                    # up to a factor that is the same for all units.
                    total += gradient.abs().sum(0).cpu()
            rows += len(batch.batch.tokens)
        return [total / rows for total in sums]

    def of_weights(self, model: Model, weights: Sequence[Tensor], evidence: Evidence) -> list[Tensor]:
        sums = [torch.zeros_like(weight) for weight in weights]
        for batch in evidence.batches(self.batches):
            gradients = _gradients(evidence.loss(model, batch), weights)
            for total, weight, gradient in zip(sums, weights, gradients, strict=True):
                total += (gradient * weight.detach()).abs()
        return [total / self.batches for total in sums]


def _gradients(loss: Tensor, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """The gradient of each tensor; 0 of one that the loss does not depend on."""
    return torch.autograd.grad(loss, list(tensors), allow_unused=True, materialize_grads=True)


class GateRecord:
    """Gates of 1 that require a gradient, new ones for each call: one for each row, so that rows do not cancel out."""

    def __init__(self, units: int):
        self.units = units
        self.values: list[Tensor] = []

    def __call__(self, rows: int) -> Tensor:
        self.values.append(torch.ones(rows, self.units, requires_grad=True))
        return self.values[-1]
