"""Padding out of the way: the valid tokens of a row side by side at its front, in their order, and back again.

What counts steps and not positions (a kernel over the last tokens, a fixed decay) is then the same for a row with gaps
as for the row without them. An index for every token and no sizes that depend on values.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor


class ValidFirst(NamedTuple):
    """A new order of the tokens of each row."""

    order: Int[Tensor, "b t"]
    """Which token comes to each place."""
    back: Int[Tensor, "b t"]
    """Which place each token came to."""
    lengths: Int[Tensor, " b"]
    """Valid tokens of each row."""


def valid_first(valid: Bool[Tensor, "b t"]) -> ValidFirst:
    """The order in which padding comes last."""
    rank = valid.cumsum(1)
    count = rank[:, -1]
    back = (rank - 1).where(valid, count[:, None] + (~valid).cumsum(1) - 1)
    places = torch.arange(valid.shape[1], device=valid.device).expand_as(back)
    return ValidFirst(torch.empty_like(back).scatter(1, back, places), back, count)


def take(x: Shaped[Tensor, "b t *d"], places: Int[Tensor, "b s"]) -> Shaped[Tensor, "b s *d"]:
    """The tokens at these places of each row."""
    index = places.reshape(*places.shape, *(1 for _ in x.shape[2:])).expand(*places.shape, *x.shape[2:])
    return x.gather(1, index)
