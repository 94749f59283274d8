"""Cross-entropy over a large vocabulary, from hidden states: all logits at once never exist.

loss = sum_i w_i [lse_i - (1 - s) l_{i,y_i} - s mean_v l_iv + z lse_i^2],  l_i = W h_i + b,  lse_i = log sum_v e^{l_iv}
s smooths the labels (arXiv 1512.00567), z keeps the logits near zero (arXiv 2204.02311). Tokens go through in chunks,
and each chunk's gradients are made while its logits are there: what is kept is as large as h and W.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

_CHUNK = {"cpu": 256}  # stays near the caches, and still feeds the matrix products
_CHUNK_ELSEWHERE = 8192
_CACHE = 1 << 21  # bytes that a core works on at its own speed


def cross_entropy(
    h: Float[Tensor, "n d"],
    weight: Float[Tensor, "v d"],
    targets: Int[Tensor, " n"],
    weights: Float[Tensor, " n"],
    *,
    bias: Float[Tensor, " v"] | None = None,
    smoothing: float = 0.0,
    z: float = 0.0,
    chunk: int | None = None,
) -> Float[Tensor, ""]:
    """The weighted sum over tokens; those of weight 0 cost nothing."""
    h, targets, weights = kept(h, targets, weights)
    if torch.compiler.is_compiling():  # torch 2.11 traces the sums in place below into wrong gradients
        return cross_entropy_plain(h, weight, targets, weights, bias=bias, smoothing=smoothing, z=z)
    learns = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (h, weight, bias))
    size = chunk or _CHUNK.get(h.device.type, _CHUNK_ELSEWHERE)
    with torch.autocast(h.device.type, enabled=False):
        return _CrossEntropy.apply(h, weight, bias, targets, weights, _How(smoothing, z, size, _dtype(h), learns))  # type: ignore[no-any-return, no-untyped-call]


def cross_entropy_plain(
    h: Float[Tensor, "n d"],
    weight: Float[Tensor, "v d"],
    targets: Int[Tensor, " n"],
    weights: Float[Tensor, " n"],
    *,
    bias: Float[Tensor, " v"] | None = None,
    smoothing: float = 0.0,
    z: float = 0.0,
) -> Float[Tensor, ""]:
    """The definition, with all logits: what the chunks are tested against."""
    logits = F.linear(h, weight, bias)
    words = logits.log_softmax(-1)
    loss = -(1 - smoothing) * words.gather(1, targets[:, None])[:, 0] - smoothing * words.mean(-1)
    return (weights * (loss + z * logits.logsumexp(-1).square())).sum()


def kept(
    h: Float[Tensor, "*n d"], targets: Int[Tensor, "*n"], weights: Float[Tensor, "*n"]
) -> tuple[Float[Tensor, "m d"], Int[Tensor, " m"], Float[Tensor, " m"]]:
    """The tokens that count, in one row. In a compiled graph all stay: sizes there may not depend on data."""
    h, targets, weights = h.flatten(0, -2), targets.flatten(), weights.flatten()
    if torch.compiler.is_compiling() or h.device.type == "meta":
        return h, targets, weights
    at = weights.nonzero()[:, 0]
    return (h, targets, weights) if len(at) == len(weights) else (h[at], targets[at], weights[at])


class _How(NamedTuple):
    smoothing: float
    z: float
    chunk: int
    dtype: torch.dtype
    """Of the matrix products; sums are at least single."""
    learns: bool


def _dtype(h: Tensor) -> torch.dtype:
    kind = h.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else h.dtype


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, h: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, weights: Tensor, how: _How
    ) -> Tensor:
        sums = torch.promote_types(how.dtype, torch.float32)
        total = torch.zeros((), dtype=sums, device=h.device)
        table, shift = weight.to(how.dtype), None if bias is None else bias.to(how.dtype)
        room = h.new_empty(min(how.chunk, len(h)), len(weight), dtype=how.dtype)
        by_h = torch.empty_like(h) if how.learns else h
        by_weight = torch.zeros_like(weight, dtype=sums) if how.learns else weight
        by_bias = None if bias is None or not how.learns else torch.zeros_like(bias, dtype=sums)
        for start in range(0, len(h), how.chunk):
            part = slice(start, start + how.chunk)
            x = h[part].to(how.dtype)
            logits = torch.mm(x, table.T, out=room[: len(x)])  # [c v]
            logits = (logits if shift is None else logits.add_(shift)).to(sums)
            for rows in _in_cache(logits):
                total += _consume(logits[rows], targets[part][rows], weights[part][rows].to(sums), how)
            if how.learns:
                slope = logits.to(how.dtype)
                by_h[part] = slope @ table
                _add_product(by_weight, slope.T, x)
            if by_bias is not None:
                by_bias += logits.sum(0)
        ctx.save_for_backward(by_h, by_weight, by_bias)
        ctx.dtypes = weight.dtype, None if bias is None else bias.dtype
        return total

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        by_h, by_weight, by_bias = ctx.saved_tensors
        weight, bias = ctx.dtypes
        by_bias = None if by_bias is None else (by_bias * slope).to(bias)
        return by_h * slope.to(by_h.dtype), (by_weight * slope).to(weight), by_bias, None, None, None


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a b, in the precision of the total."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    else:
        total += a @ b


def _in_cache(logits: Tensor) -> list[slice]:
    """Rows that are read again and again: few at a time on the CPU, all elsewhere and where a compiler fuses."""
    few = len(logits)
    if logits.device.type == "cpu" and not torch.compiler.is_compiling():
        few = max(1, _CACHE // (logits.shape[1] * logits.element_size()))
    return [slice(start, start + few) for start in range(0, len(logits), few)]


def _consume(logits: Tensor, targets: Tensor, weights: Tensor, how: _How) -> Tensor:
    """The chunk's loss; logits become its gradient by them, in the same memory."""
    at, smooth = targets[:, None], how.smoothing
    top = logits.amax(-1, keepdim=True)
    logits.sub_(top)
    wanted = (1 - smooth) * logits.gather(1, at)[:, 0]
    if smooth:
        wanted = wanted + smooth * logits.mean(-1)
    mass = logits.exp_().sum(-1)
    lse = mass.log() + top[:, 0]
    if how.learns:
        logits.mul_((weights * (1 + 2 * how.z * lse) / mass)[:, None])
        if smooth:
            logits.sub_((weights * smooth / logits.shape[1])[:, None])
        logits.scatter_add_(1, at, -(1 - smooth) * weights[:, None])
    return (weights * (mass.log() - wanted + how.z * lse.square())).sum()
