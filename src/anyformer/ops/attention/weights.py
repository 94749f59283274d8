"""Attention with explicit weights: the definition, token by token, and the form that shows or edits the weights."""

import torch
from jaxtyping import Float
from torch import Tensor

from anyformer.core.positions import Bias
from anyformer.ops.attention.call import AttentionCall


def attention_weights(
    q: Float[Tensor, "b t h c"],
    k: Float[Tensor, "b s g c"],
    call: AttentionCall,
    *,
    scale: float,
    bias: Bias | None = None,
) -> Float[Tensor, "b h t s"]:
    """softmax_j(scale q_i . k_j + bias_ij); a query that sees no key has zeros."""
    scores = torch.einsum("bthc,bshc->bhts", q * scale, _repeat_heads(k, q.shape[2]))
    if bias is not None:
        scores = scores + bias.dense()
    mask = call.mask()
    if mask is None:
        return scores.softmax(-1)
    mask = mask[:, None]
    weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)
    return weights.masked_fill(~mask, 0.0)  # softmax would make a row without keys uniform


def weighted_sum(weights: Float[Tensor, "b h t s"], v: Float[Tensor, "b s g c"]) -> Float[Tensor, "b t h c"]:
    """sum_j weights_ij v_j."""
    return torch.einsum("bhts,bshc->bthc", weights, _repeat_heads(v, weights.shape[1]))


def attend_loop(
    q: Float[Tensor, "b t h c"],
    k: Float[Tensor, "b s g c"],
    v: Float[Tensor, "b s g c"],
    call: AttentionCall,
    *,
    scale: float,
) -> Float[Tensor, "b t h c"]:
    """The definition, one query at a time: the reference that every fast path is tested against."""
    mask, group = call.mask(), q.shape[2] // k.shape[2]
    y = torch.zeros_like(q)
    for b in range(q.shape[0]):
        for h in range(q.shape[2]):
            for i in range(q.shape[1]):
                row = None if mask is None else mask[min(b, mask.shape[0] - 1), i]
                seen = [j for j in range(k.shape[1]) if row is None or row[j]]
                if seen:
                    keys, values = k[b, seen, h // group], v[b, seen, h // group]
                    y[b, i, h] = (scale * keys @ q[b, i, h]).softmax(0) @ values
    return y


def _repeat_heads(x: Tensor, heads: int) -> Tensor:
    return x if x.shape[2] == heads else x.repeat_interleave(heads // x.shape[2], dim=2)
