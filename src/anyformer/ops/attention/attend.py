"""Softmax attention: y_i = sum_j softmax_j(scale q_i . k_j + bias_ij) v_j over the keys j that i may see.

`attend` picks the cheapest exact way for the device and the rule; `attend_loop` is the definition, token by token, and
`weigh` makes the weights explicit for those who want to look. A query that may see nothing gets zeros, not NaN.
Queries are [b t h c]; keys and values [b s g c] with h a multiple of g (grouped heads).
"""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from anyformer.core.positions import Bias
from anyformer.ops.attention.band import attend_band, is_hopper, worth_band
from anyformer.ops.attention.blocked import attend_blocked, worth_blocking
from anyformer.ops.attention.call import AttentionCall
from anyformer.ops.attention.flash_shape import attend_shape
from anyformer.ops.attention.flex import attend_flex, worth_flex
from anyformer.ops.attention.packed import attend_documents, worth_documents
from anyformer.ops.meta_tensors import is_empty

_PLANNED_LENGTH = 512
"""On Hopper cuDNN's kernels pay from here on. It makes a plan for each new shape, which takes longer
than a step, and batches of short rows have many shapes."""
_SHORT = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
_LONG = [SDPBackend.CUDNN_ATTENTION, *_SHORT]


def attend(
    q: Float[Tensor, "b t h c"],
    k: Float[Tensor, "b s g c"],
    v: Float[Tensor, "b s g c"],
    sight: AttentionCall,
    *,
    scale: float,
    bias: Bias | None = None,
    dropout: float = 0.0,
    heads: Float[Tensor, "b t n c"] | None = None,
) -> Float[Tensor, "b t h c"]:
    """Attention, by the fastest exact path. `heads`: what q, k and v were cut from, if they lie there side by side."""
    if is_empty(q) and bias is None and not dropout:
        return attend_shape(q, k, v)
    if bias is None and not dropout and worth_documents(q, k, v, sight):
        return attend_documents(q, k, v, sight, scale, heads)
    if bias is None and not dropout and worth_band(q, k, v, sight, scale):
        return attend_band(q, k, v, sight, scale, heads)
    if q.device.type == "cuda" and not dropout and worth_flex(q, k, sight, bias):
        return attend_flex(q, k, v, sight, scale, bias)
    if q.device.type == "cpu" and bias is None and not dropout and worth_blocking(sight, q.shape[1]):
        return attend_blocked(q, k, v, sight, scale)
    return _sdpa(q, k, v, sight, scale, bias, dropout)


def weigh(
    q: Float[Tensor, "b t h c"],
    k: Float[Tensor, "b s g c"],
    sight: AttentionCall,
    *,
    scale: float,
    bias: Bias | None = None,
) -> Float[Tensor, "b h t s"]:
    """The attention weights, written out."""
    k = _spread(k, q.shape[2])
    scores = torch.einsum("bthc,bshc->bhts", q * scale, k)
    if bias is not None:
        scores = scores + bias.dense()
    mask = sight.mask()
    if mask is None:
        return scores.softmax(-1)
    mask = mask[:, None]
    weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)
    return weights.masked_fill(~mask, 0.0)  # a row without keys is zero, not uniform


def average(weights: Float[Tensor, "b h t s"], v: Float[Tensor, "b s g c"]) -> Float[Tensor, "b t h c"]:
    """The weighted sum of the values."""
    return torch.einsum("bhts,bshc->bthc", weights, _spread(v, weights.shape[1]))


def attend_loop(
    q: Float[Tensor, "b t h c"],
    k: Float[Tensor, "b s g c"],
    v: Float[Tensor, "b s g c"],
    sight: AttentionCall,
    *,
    scale: float,
) -> Float[Tensor, "b t h c"]:
    """The definition, one query at a time: what every fast path is tested against."""
    mask, group = sight.mask(), q.shape[2] // k.shape[2]
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


def _sdpa(
    q: Tensor, k: Tensor, v: Tensor, sight: AttentionCall, scale: float, bias: Bias | None, dropout: float
) -> Tensor:
    causal = sight.is_causal() and bias is None
    mask = None if causal else _mask(sight, bias, q)
    grouped = q.shape[2] != k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # [b h t c]
    order = _LONG if q.shape[2] >= _PLANNED_LENGTH else _SHORT
    with sdpa_kernel(order, set_priority=True) if is_hopper(q) else nullcontext():
        y = F.scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale=scale, enable_gqa=grouped)
    return y.transpose(1, 2)


def _mask(sight: AttentionCall, bias: Bias | None, q: Tensor) -> Tensor | None:
    mask = sight.mask()
    mask = None if mask is None else mask[:, None]  # [b 1 t s]
    if bias is None and mask is not None and _adds_masks(q):
        return torch.where(mask, 0.0, -torch.inf).to(q.dtype)  # torch would too, but inside, for each layer of a tape
    if bias is None:
        return mask
    return bias.dense() if mask is None else bias.dense().masked_fill(~mask, -torch.inf)


def _adds_masks(q: Tensor) -> bool:
    """Whether a mask may be written out in numbers. Of a boolean one torch makes the same, with zeros for a query that
    sees nothing, but not for cuDNN, which is left out only here: on a CPU, and where `_SHORT` sets the order."""
    return q.device.type == "cpu" or (is_hopper(q) and q.shape[1] < _PLANNED_LENGTH)


def _spread(x: Tensor, heads: int) -> Tensor:
    return x if x.shape[2] == heads else x.repeat_interleave(heads // x.shape[2], dim=2)
