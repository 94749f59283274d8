"""Softmax attention: y_i = sum_j softmax_j(scale q_i . k_j + bias_ij) v_j over the keys j that i may see.

`attend` is the one way in: it appends to the cache, computes the bias and chooses the kernel (`dispatch`), or makes the
weights explicit if a tap or the position scheme needs them. A query that may see nothing gets zeros, not NaN.
Queries are [b t h c]; keys and values [b s g c] with h a multiple of g (grouped heads).
"""

from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from anyformer.core.frame import ContiguousCursor, Marks
from anyformer.core.masks import Full, MaskRule
from anyformer.core.module import Tap
from anyformer.core.part import Bias, Position
from anyformer.ops.attention.blocked import attend_blocked, prefers_blocks
from anyformer.ops.attention.call import AttentionCall, Keys, NewKeys, attention_weights, weighted_sum
from anyformer.ops.attention.flex import attend_flex, prefers_flex
from anyformer.ops.attention.packed import attend_band, attend_documents, prefers_band, prefers_documents
from anyformer.ops.decode_step import attend_step, supports_step
from anyformer.ops.devices import is_empty


class _FlashShape(torch.autograd.Function):
    """Saves for the backward pass what a fused kernel saves; torch's meta kernel saves [t s] matrices, as no device
    does, which would double the estimate of activations."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        y = torch.empty_like(q)
        log_sum = q.new_empty(q.shape[:3], dtype=torch.float32)
        ctx.save_for_backward(q, k, v, y, log_sum)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        q, k, v, _, _ = ctx.saved_tensors
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def attend_shape(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of meta tensors: the shape of its output, and what a fused kernel saves for the backward pass."""
    return _FlashShape.apply(q, k, v)  # type: ignore[no-untyped-call,no-any-return]


_PLANNED_LENGTH = 512
"""Length from which on cuDNN's kernels pay on Hopper. cuDNN makes a plan for each new shape, which takes longer than a
step, and batches of short rows have many shapes."""
_SHORT = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
_LONG = [SDPBackend.CUDNN_ATTENTION, *_SHORT]
_FULL = Full()


class Taps(NamedTuple):
    """Where the inside of attention can be seen: the weights [b h t s], the scaled queries and the keys."""

    pattern: Tap
    queries: Tap | None = None
    keys: Tap | None = None


def attend(
    q: Float[Tensor, "b t h c"],
    marks: Marks,
    keys: Keys | NewKeys,
    *,
    rule: MaskRule,
    scale: float,
    taps: Taps,
    position: Position | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "b t h c"]:
    """Attention of queries with these marks, by the fastest exact path. New keys are appended to their cache first."""
    biased = position is not None and position.has_bias
    explicit = taps.pattern.captured or (position is not None and position.has_values)
    if isinstance(keys, NewKeys):
        contiguous = isinstance(keys.frame.cursor, ContiguousCursor)
        if not biased and not explicit and rule.is_causal and contiguous and supports_step(q, keys.cache.k):
            positions, fused = keys.frame.positions, keys.fused
            assert positions is not None
            fused = torch.cat((q, keys.k, keys.v), dim=2) if fused is None else fused
            step: Tensor = attend_step(fused[:, 0], *keys.cache, positions[:, 0], scale)
            return step[:, None]
        keys = keys.cache.append(keys.k, keys.v, keys.frame)
    if keys.none_later and q.shape[1] == 1 and rule.is_causal:
        rule = _FULL
    call = AttentionCall(rule, marks, keys.marks, keys.valid, keys.plain, keys.documents)
    bias = None if position is None else position.bias(q, keys.k, call.q, call.k)
    if not explicit:
        return dispatch(q, keys.k, keys.v, call, scale=scale, bias=bias, dropout=dropout, fused=keys.fused)
    q, k = q * scale, keys.k
    q, k = q if taps.queries is None else taps.queries(q), k if taps.keys is None else taps.keys(k)
    weights = taps.pattern(attention_weights(q, k, call, scale=1.0, bias=bias))
    weights = torch.dropout(weights, dropout, train=True)
    y = weighted_sum(weights, keys.v)
    extra = None if position is None else position.values(weights, call.q, call.k)
    return y if extra is None else y + extra


def dispatch(
    q: Float[Tensor, "b t h c"],
    k: Float[Tensor, "b s g c"],
    v: Float[Tensor, "b s g c"],
    call: AttentionCall,
    *,
    scale: float,
    bias: Bias | None = None,
    dropout: float = 0.0,
    fused: Float[Tensor, "b t n c"] | None = None,
) -> Float[Tensor, "b t h c"]:
    """Attention by the fastest kernel for the device, the rule and the lengths. `fused`: as in `Keys`."""
    simple, sparse = bias is None and not dropout, call.is_sparse()
    if simple and is_empty(q):
        return attend_shape(q, k, v)
    if simple and prefers_documents(q, k, v, call):
        return attend_documents(q, k, v, call, scale, fused)
    if simple and sparse and prefers_band(q, k, v, call):
        return attend_band(q, k, v, call, scale, fused)
    if q.device.type == "cuda" and not dropout and prefers_flex(q, k, call, bias):
        return attend_flex(q, k, v, call, scale, bias)
    if q.device.type == "cpu" and simple and sparse and prefers_blocks(call, q.shape[1]):
        return attend_blocked(q, k, v, call, scale)
    return _sdpa(q, k, v, call, scale, bias, dropout)


def _sdpa(
    q: Tensor, k: Tensor, v: Tensor, call: AttentionCall, scale: float, bias: Bias | None, dropout: float
) -> Tensor:
    causal = call.is_causal() and bias is None
    mask = None if causal else _mask(call, bias, q)
    grouped = q.shape[2] != k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # [b h t c]
    # the length is compared on Hopper alone: a comparison would limit the lengths that an exported graph reads
    with sdpa_kernel(_order(q), set_priority=True) if _is_hopper(q) else nullcontext():
        y = F.scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale=scale, enable_gqa=grouped)
    return y.transpose(1, 2)


def _mask(call: AttentionCall, bias: Bias | None, q: Tensor) -> Tensor | None:
    mask = call.mask()
    if mask is None:
        return None if bias is None else bias.dense()
    mask = mask[:, None]  # [b 1 t s]
    if bias is not None:
        return bias.dense().masked_fill(~mask, -torch.inf)
    # Torch converts a boolean mask to this additive one itself, with zeros for a query that sees nothing, but once a
    # layer. cuDNN does not; it is excluded only on a CPU and where `_SHORT` sets the order.
    converts = q.device.type == "cpu" or (_is_hopper(q) and q.shape[1] < _PLANNED_LENGTH)
    return torch.where(mask, 0.0, -torch.inf).to(q.dtype) if converts else mask


def _order(q: Tensor) -> list[SDPBackend]:
    """The kernels to try on Hopper, in this order, for q [b h t c]."""
    return _LONG if q.shape[2] >= _PLANNED_LENGTH else _SHORT


def _is_hopper(x: Tensor) -> bool:
    """True on the GPU generation that the order of kernels was measured on."""
    return x.device.type == "cuda" and torch.cuda.get_device_capability(x.device)[0] == 9
