"""Chunks of equal length; and compaction: the valid tokens of a row at its front, in order, and back again.

After compaction an operation that counts steps and not positions (a convolution, a fixed decay) gives the same result
with gaps as without. All shapes are independent of the data.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int, Shaped
from torch import Tensor


def cut(x: Tensor, chunk: int, *, pad_front: bool = False) -> Tensor:
    """[b t ...] -> [b n chunk ...], padded with zeros at the end, or at the front for a scan from the end."""
    pad = -x.shape[1] % chunk
    sides = (pad, 0) if pad_front else (0, pad)
    padded = F.pad(x, (0, 0) * (x.dim() - 2) + sides) if pad else x
    chunks: Tensor = padded.unflatten(1, (-1, chunk))
    return chunks


class Compact(NamedTuple):
    """A permutation of the tokens of each row."""

    order: Int[Tensor, "b t"]
    """The old index of the token at each new index."""
    back: Int[Tensor, "b t"]
    """The new index of each token."""
    lengths: Int[Tensor, " b"]
    """Number of valid tokens of each row."""


def compact(valid: Bool[Tensor, "b t"]) -> Compact:
    """The permutation that moves padding to the end."""
    rank = valid.cumsum(1)
    count = rank[:, -1]
    back = (rank - 1).where(valid, count[:, None] + (~valid).cumsum(1) - 1)
    places = torch.arange(valid.shape[1], device=valid.device).expand_as(back)
    return Compact(torch.empty_like(back).scatter(1, back, places), back, count)


def take(x: Shaped[Tensor, "b t *d"], places: Int[Tensor, "b s"]) -> Shaped[Tensor, "b s *d"]:
    """The tokens at these indices of each row."""
    index = places.reshape(*places.shape, *(1 for _ in x.shape[2:])).expand(*places.shape, *x.shape[2:])
    return x.gather(1, index)
