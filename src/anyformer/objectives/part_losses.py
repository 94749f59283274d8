"""The auxiliary losses of a model's own parts, as one term beside the objective: a router's balance, a thinking cost.

sum = n x (mean given by the parts),  weight = n = tokens that count: micro-batches add up to a mean over all of them
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from anyformer.data.batching.batch import Batch
from anyformer.objectives.heads import HiddenStates
from anyformer.objectives.objective import Loss, Term

PARTS = "parts"
"""Name of the term."""


def parts_count(batch: Batch) -> Mapping[str, Tensor]:
    """Number of tokens that count, on both sides of a pair: the weight of the term."""
    sides = (batch,) if batch.source is None else (batch, batch.source)
    return {PARTS: torch.stack([side.valid.sum() for side in sides]).sum().float()}


def parts_term(batch: Batch, *readings: HiddenStates) -> Loss:
    """The auxiliary losses of one or several passes over the batch; empty if no part has one."""
    losses = [reading.auxiliary_loss for reading in readings if reading.auxiliary_loss is not None]
    if not losses:
        return {}
    tokens = parts_count(batch)[PARTS]
    return {PARTS: Term(torch.stack(losses).sum() * tokens, tokens)}


def parts_together(losses: Iterable[Loss]) -> Loss:
    """The sum of the terms of several batches, each of other tokens."""
    terms = [loss[PARTS] for loss in losses if PARTS in loss]
    if not terms:
        return {}
    sums, weights = (torch.stack(values).sum() for values in zip(*terms, strict=True))
    return {PARTS: Term(sums, weights)}
