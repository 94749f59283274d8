"""Attention inside the buckets of a locality-sensitive hash, over several rounds of hashing.

y_i = sum_r sum_j e^(q_i . k_j) v_j / sum_r sum_j e^(q_i . k_j)          (arXiv 2001.04451, section 2)
over the nearest `window` other tokens j of i's bucket in each round r, before i or on both sides of i; a key of several
rounds counts once for each. Ranks in a bucket decide who is near: unlike chunks of fixed borders they do not depend on
tokens that a causal query must not see.

`attend_pairs` is the definition over all pairs. `attend_sorted` sorts the tokens by bucket, so that each block of
`window` tokens needs only itself and its neighbours: linear in the length.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anyformer.ops.padding import cut

_LOWEST = -1e30
"""Peak of a query without visible keys: below every score, and finite, so that differences are numbers."""


class Weighted(NamedTuple):
    """Sums of values with weights e^(score - peak)."""

    values: Float[Tensor, "b t h c"]
    weight: Float[Tensor, "b t h"]
    """Sum of the weights; 0 for a query that sees no other token."""
    peak: Float[Tensor, "b t h"]
    """The largest score of a query; the lowest possible one if it sees no other token."""


def hash_buckets(x: Float[Tensor, "b t h c"], rotations: Float[Tensor, "h c r n"]) -> Int[Tensor, "b t h r"]:
    """The direction among n random ones and their opposites that is nearest to x, for each of r rounds. Without
    directions there is one bucket."""
    if rotations.shape[-1] == 0:
        return torch.zeros(*x.shape[:3], rotations.shape[2], dtype=torch.long, device=x.device)
    projected = torch.einsum("bthc,hcrn->bthrn", x, rotations)
    return torch.cat((projected, -projected), dim=-1).argmax(-1)


def visible_rounds(
    q_buckets: Int[Tensor, "b t h r"],
    k_buckets: Int[Tensor, "b s h r"],
    offset: Int[Tensor, "#b t s"],
    allowed: Bool[Tensor, "#b #t #s"],
    window: int,
    causal: bool,
) -> Int[Tensor, "b h t s"]:
    """Number of rounds in which each query sees each key, itself excluded. `offset`: position of the key minus that of
    the query. Keys of a document must be in order."""
    rounds = torch.zeros(1, dtype=torch.int32, device=offset.device)
    behind, ahead = (offset < 0)[:, None], (offset > 0)[:, None]
    for q, k in zip(q_buckets.unbind(-1), k_buckets.unbind(-1), strict=True):
        same = (q.transpose(1, 2)[..., :, None] == k.transpose(1, 2)[..., None, :]) & allowed[:, None]  # [b h t s]
        past, future = (same & behind), (same & ahead)
        nearer = past.flip(-1).cumsum(-1, dtype=torch.int32).flip(-1)
        near = past & (nearer <= window)
        if not causal:
            near = near | (future & (future.cumsum(-1, dtype=torch.int32) <= window))
        rounds = rounds + near
    return rounds


def attend_pairs(
    q: Float[Tensor, "b t h c"],
    k: Float[Tensor, "b s h c"],
    v: Float[Tensor, "b s h c"],
    rounds: Int[Tensor, "b h t s"],
) -> Weighted:
    """The definition: all pairs, each weighted by the number of rounds in which the query sees the key."""
    scores = torch.einsum("bthc,bshc->bhts", q, k)
    hidden = rounds == 0
    peak = scores.detach().masked_fill(hidden, -torch.inf).amax(-1).nan_to_num(neginf=_LOWEST)
    weights = (scores - peak[..., None]).masked_fill(hidden, -torch.inf).exp() * rounds
    values = torch.einsum("bhts,bshc->bthc", weights, v)
    return Weighted(values, weights.sum(-1).transpose(1, 2), peak.transpose(1, 2))


def attend_sorted(
    q: Float[Tensor, "b t h c"],
    k: Float[Tensor, "b t h c"],
    v: Float[Tensor, "b t h c"],
    buckets: Int[Tensor, "b t h r"],
    window: int,
    causal: bool,
) -> Weighted:
    """The sums of `attend_pairs` in blocks of `window` sorted tokens; tokens of equal bucket numbers see each other."""
    order = buckets.argsort(dim=1, stable=True)  # inside a bucket in the order of time
    back, length = order.argsort(dim=1), q.shape[1]
    # The weights are summed by a column of ones: a product adds in order, so that the place of a bucket among the
    # sorted tokens, which depends on the future, does not change the rounding.
    v = F.pad(v, (0, 1), value=1.0)
    buckets = cut(buckets.gather(1, order) + 1, window).permute(0, 3, 4, 1, 2)  # [b h r n l]; padding is bucket 0
    q, k, v = (_sorted(x, order, window) for x in (q, k, v))  # [b h r n l c]
    k, v = (_with_neighbours(x, causal) for x in (k, v))  # [b h r n s c]
    hidden = buckets[..., :, None] != _with_neighbours(buckets[..., None], causal).mT
    hidden = hidden | ~_band(window, causal, q.device)
    scores = q @ k.mT  # [b h r n l s]
    peak = scores.detach().masked_fill(hidden, -torch.inf).amax(-1, keepdim=True).nan_to_num(neginf=_LOWEST)
    sums = (scores - peak).masked_fill(hidden, -torch.inf).exp() @ v
    sums, peaks = (_unsorted(x, back, length) for x in (sums, peak))  # [b t h r c+1], [b t h r 1]
    peak = peaks.amax(3, keepdim=True)
    sums = (sums * (peaks - peak).exp()).sum(3)
    return Weighted(sums[..., :-1], sums[..., -1], peak[..., 0, 0])


def sorted_pairs(length: int, window: int, causal: bool) -> int:
    """Pairs of tokens that `attend_sorted` computes in each round."""
    return -(-length // window) * window * window * (2 if causal else 3)


def _sorted(x: Tensor, order: Tensor, window: int) -> Tensor:
    """x in the order of each round, in blocks: [b h r n l c]."""
    index = order[..., None].expand(*order.shape, x.shape[-1])
    taken = x[:, :, :, None].expand(index.shape).gather(1, index)  # [b t h r c]
    return cut(taken, window).permute(0, 3, 4, 1, 2, 5)


def _unsorted(x: Tensor, back: Tensor, length: int) -> Tensor:
    """[b h r n l c] in the order of time again: [b t h r c]."""
    x = x.flatten(3, 4)[:, :, :, :length].permute(0, 3, 1, 2, 4)
    return x.gather(1, back[..., None].expand(x.shape))


def _with_neighbours(x: Tensor, causal: bool) -> Tensor:
    """Tokens [b h r n l c] of every block with those of the one before, and of the one after if queries see both."""
    empty = torch.zeros_like(x[:, :, :, :1])
    before = torch.cat((empty, x[:, :, :, :-1]), dim=3)
    after = () if causal else (torch.cat((x[:, :, :, 1:], empty), dim=3),)
    return torch.cat((before, x, *after), dim=4)


def _band(window: int, causal: bool, device: torch.device) -> Tensor:
    """True for keys at most `window` ranks before a query, or after it if it sees both sides; without itself."""
    place = torch.arange(window, device=device)
    distance = place[:, None] + window - torch.arange((2 if causal else 3) * window, device=device)
    if causal:
        return (distance > 0) & (distance <= window)
    return (distance != 0) & (distance.abs() <= window)
