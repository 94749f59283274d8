"""What the parts of a model ask for themselves beside the objective: a router's balance, a price for thinking long.

sum = n x (the mean that they gave),  weight = n = live tokens read: micro-batches add up to a mean over all
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
    """How many tokens there are, on both sides of a pair."""
    sides = (batch,) if batch.source is None else (batch, batch.source)
    return {PARTS: torch.stack([side.valid.sum() for side in sides]).sum().float()}


def parts_term(batch: Batch, *readings: HiddenStates) -> Loss:
    """What was asked for while the batch was read, once or by several models; nothing where nothing was."""
    own = [reading.own for reading in readings if reading.own is not None]
    if not own:
        return {}
    tokens = parts_count(batch)[PARTS]
    return {PARTS: Term(torch.stack(own).sum() * tokens, tokens)}


def parts_together(terms: Iterable[Loss]) -> Loss:
    """One term of several, each of other tokens."""
    found = [loss[PARTS] for loss in terms if PARTS in loss]
    if not found:
        return {}
    sums, weights = (torch.stack(values).sum() for values in zip(*found, strict=True))
    return {PARTS: Term(sums, weights)}
