"""Attention by a product of positive features: sums over keys that need no matrix of pairs.

sums_i = f_i sum_j g_j [v_j, 1]^T ,  with features f of queries and g of keys; y_i = sums_i[:-1] / sums_i[-1]
Over the past these are the states of `outer_scan`; in both directions one matrix for all tokens of a row.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anyformer.core.module import Call
from anyformer.ops.recurrence.outer_product_scan import outer_scan, outer_scan_flops


def past_sums(
    q: Float[Tensor, "b t h n"],
    k: Float[Tensor, "b t h n"],
    v: Float[Tensor, "b t h c"],
    state: Float[Tensor, "b h n 1 e"] | None = None,
    begins: Bool[Tensor, "b t"] | None = None,
) -> tuple[Float[Tensor, "b t h e"], Float[Tensor, "b h n 1 e"] | None]:
    """Sums over the token and those before it [b t h c+1], and the next state if one was passed. The state is reset
    before a token of `begins`."""
    return outer_scan(q, k, _with_ones(v), None, state, begins)


def all_sums(
    q: Float[Tensor, "b t h n"],
    k: Float[Tensor, "b t h n"],
    v: Float[Tensor, "b t h c"],
    segments: Int[Tensor, "b t"] | None = None,
) -> Float[Tensor, "b t h e"]:
    """Sums over all tokens of the row [b t h c+1]; over those of the same document, pair by pair, if it is packed."""
    v = _with_ones(v)
    if segments is None:
        return torch.einsum("bthn,bhnc->bthc", q, torch.einsum("bshn,bshc->bhnc", k, v))
    other = segments[:, None, :, None] != segments[:, None, None, :]
    scores = torch.einsum("bthn,bshn->bhts", q, k).masked_fill(other, 0.0)
    return torch.einsum("bhts,bshc->bthc", scores, v)


def sums_flops(call: Call, heads: int, sizes: tuple[int, int], causal: bool) -> int:
    """Forward FLOPs of the sums; sizes = (n, c). Backward: twice that."""
    n, c = sizes[0], sizes[1] + 1
    if causal:
        return outer_scan_flops((call.batch, call.length), (heads, heads), (n, c), gated=False, stateful=call.past > 0)
    return 4 * call.batch * call.length * heads * n * c


def _with_ones(v: Tensor) -> Tensor:
    """Values with a last channel of ones, whose sum is the divisor."""
    return torch.cat((v, torch.ones_like(v[..., :1])), dim=-1)
