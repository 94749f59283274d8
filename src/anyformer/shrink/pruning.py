"""Pruning: ranks units and keeps the most important ones of each group; or sets single weights to zero."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from anyformer.core import Model, ModelSpec, kind_of
from anyformer.core.fields import did_you_mean
from anyformer.core.module import Linear
from anyformer.errors import SpecError
from anyformer.shrink.importance import Evidence, Importance
from anyformer.shrink.removal import Removal, built, distinct

WEIGHTS = "weights"
Scope = Literal["model", "layer", "role"]
"""Which weights are ranked against each other: all, those of one matrix, or those of one role."""


@dataclass(frozen=True)
class PruneAmount:
    """How much of a kind of unit is pruned: `heads=0.5`."""

    what: str
    share: float

    @classmethod
    def parse(cls, text: str) -> "PruneAmount":
        """Reads an argument of --prune."""
        what, _, share = text.partition("=")
        Removal.load_kinds()
        known = [*Removal.kinds, WEIGHTS]
        if what not in known:
            raise SpecError(f"--prune {text}: {what!r} cannot be pruned.{did_you_mean(what, known)}")
        try:
            number = float(share)
        except ValueError:
            raise SpecError(f"--prune {text}: write the share to remove, for example {what}=0.5.") from None
        if not 0 < number < 1:
            raise SpecError(f"--prune {text}: the share must be above 0 and below 1, got {share}.")
        return cls(what, number)


def kept_count(count: int, share: float) -> int:
    """How many of `count` units stay if a share is removed; at least one."""
    return max(1, count - round(share * count))


def remove(
    spec: ModelSpec, model: Model, amount: PruneAmount, importance: Importance, evidence: Evidence
) -> tuple[ModelSpec, Model]:
    """The smaller model without the least important share of a kind of unit. `model` has the weights of `spec`."""
    removal = kind_of(Removal, amount.what)()
    spec = distinct(spec)
    model = built(spec, model.state_dict(), amount.what)
    groups = removal.groups(spec, model)
    remaining = {}
    for group, scores in zip(groups, importance.of_units(model, groups, evidence), strict=True):
        most = scores.argsort(descending=True)[: kept_count(group.count, amount.share)]
        remaining[group.name] = sorted(most.tolist())
    if all(len(units) == group.count for group, units in zip(groups, remaining.values(), strict=True)):
        counts = ", ".join(sorted({str(group.count) for group in groups}))
        raise SpecError(f"--prune {amount.what}={amount.share:g}: removes nothing, there are {counts} {amount.what}.")
    smaller, tensors = removal.smaller(spec, model, remaining)
    return smaller, built(smaller, tensors, amount.what)


def set_to_zero(model: Model, share: float, importance: Importance, evidence: Evidence, scope: Scope = "model") -> None:
    """Sets the least important share of the weights of all matrices to zero, in place.

    Embeddings, biases and gains stay. In every group of `scope`, exactly round(share x weights) become zero.
    """
    matrices = [module for module in model.modules() if isinstance(module, Linear)]
    if not matrices:
        raise SpecError("--prune weights: this model has no weight matrices.")
    scores = importance.of_weights(model, [matrix.weight for matrix in matrices], evidence)
    for members in _scopes(matrices, scores, scope):
        flat = torch.cat([score.flatten() for _, score in members])
        count = round(share * flat.numel())
        lowest = torch.zeros_like(flat, dtype=torch.bool)
        lowest[flat.topk(count, largest=False).indices] = True
        sizes = [score.numel() for _, score in members]
        for (weight, score), drop in zip(members, lowest.split(sizes), strict=True):
            weight.masked_fill_(drop.view_as(score), 0.0)


def _scopes(matrices: Sequence[Linear], scores: Sequence[Tensor], scope: Scope) -> list[list[tuple[Tensor, Tensor]]]:
    """(weights, scores) of the matrices that are ranked together."""
    members: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for place, (matrix, score) in enumerate(zip(matrices, scores, strict=True)):
        weight, slices = matrix.weight.detach(), matrix.roles["weight"]
        if scope == "role":  # a fused projection holds several roles, one after the other
            widths = [width for _, width in slices]
            for (role, _), rows, row_scores in zip(slices, weight.split(widths), score.split(widths), strict=True):
                members.setdefault(role, []).append((rows, row_scores))
        else:
            members.setdefault("" if scope == "model" else str(place), []).append((weight, score))
    return list(members.values())
