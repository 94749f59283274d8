"""Cross-entropy over a large vocabulary, from hidden states, without ever holding all logits.

loss = sum_i w_i [lse_i - (1 - s) l_{i,y_i} - s mean_v l_iv + z lse_i^2],  l_i = W h_i + b,  lse_i = log sum_v e^{l_iv}
s smooths the labels (arXiv 1512.00567), z keeps the logits near zero (arXiv 2204.02311), and a cap bounds them:
l <- cap tanh(l / cap) (arXiv 2408.00118). Tokens are processed in chunks, and each chunk's gradients are computed while
its logits are in memory: the saved tensors have the sizes of h and W. The operator is opaque to a compiler, so that a
graph does not depend on the number of chunks. On a GPU one kernel computes the losses and the gradient of a chunk's
logits: `loss_kernel`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import register_flop_formula

from anyformer.core.frame import Frame
from anyformer.core.model import LogitProduct
from anyformer.ops.devices import TRITON, at_least_float32, supports_triton

if TRITON:
    from anyformer.ops.kernels.loss_kernel import launch

_CHUNK_CPU = 256  # tokens: fits into caches, and keeps matrix products efficient
_CACHE = 1 << 21  # bytes of a core's cache
_ROOM = 15 << 25  # bytes of logits of a chunk on a GPU: enough tokens that adding to the table's gradient is cheap
_ALIGNED = 64  # logits: rows begin at a cache line; otherwise products take several times as long
_SCORES = 1 << 23  # scores of a chunk of `loss_in_chunks` on a CPU; eight times as many on a GPU
_FEW = 16  # chunks whose sum may be rounded to half precision each time: at most three times the error of once


def cross_entropy(
    logits: LogitProduct,
    targets: Int[Tensor, "*n"],
    weights: Float[Tensor, "*n"],
    *,
    smoothing: float = 0.0,
    z: float = 0.0,
    cap: float = 0.0,
    chunk: int | None = None,
) -> Float[Tensor, ""]:
    """The weighted sum of the losses of all tokens; tokens of weight 0 may hold any values. `cap`: 0 for no bound."""
    h, weight, bias = logits
    h, targets, weights = h.flatten(0, -2), targets.flatten(), weights.flatten()
    learns = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (h, weight, bias))
    kind = h.device.type
    if torch.is_autocast_enabled(kind):
        h = h.to(torch.get_autocast_dtype(kind))
    if chunk is None:
        room = _ROOM // (_width(h, len(weight)) * h.dtype.itemsize)
        chunk = _CHUNK_CPU if kind == "cpu" else max(512, room // 128 * 128)
    # without gradients the operator gains nothing, and its first call would import torch's compiler
    compute = _operator if learns or torch.compiler.is_compiling() else _chunked
    total: Tensor = compute(h, weight, bias, targets, weights, [smoothing, z, cap], chunk, learns)[0]
    return total


def cross_entropy_plain(
    h: Float[Tensor, "n d"],
    weight: Float[Tensor, "v d"],
    targets: Int[Tensor, " n"],
    weights: Float[Tensor, " n"],
    *,
    bias: Float[Tensor, " v"] | None = None,
    smoothing: float = 0.0,
    z: float = 0.0,
    cap: float = 0.0,
) -> Float[Tensor, ""]:
    """The definition, with all logits: the reference for the chunks."""
    logits = F.linear(h, weight, bias)
    logits = cap * torch.tanh(logits / cap) if cap else logits
    words = logits.log_softmax(-1)
    loss = -(1 - smoothing) * words.gather(1, targets[:, None])[:, 0] - smoothing * words.mean(-1)
    return (weights * (loss + z * logits.logsumexp(-1).square())).sum()


def tokens_with_weight(
    h: Float[Tensor, "*n d"], targets: Int[Tensor, "*n"], weights: Float[Tensor, "*n"]
) -> tuple[Float[Tensor, "m d"], Int[Tensor, " m"], Float[Tensor, " m"]]:
    """The tokens with a weight above 0, as one row. All tokens in a compiled graph, whose sizes may not depend on data,
    and on a GPU, where counting them would synchronise."""
    h, targets, weights = h.flatten(0, -2), targets.flatten(), weights.flatten()
    if torch.compiler.is_compiling() or h.device.type != "cpu":
        return h, targets, weights
    at = weights.nonzero()[:, 0]
    return (h, targets, weights) if len(at) == len(weights) else (h[at], targets[at], weights[at])


def loss_in_chunks(
    loss: Callable[..., Tensor],
    scores_per_token: int,
    h: Float[Tensor, "b t d"],
    frame: Frame,
    targets: Int[Tensor, "b t"],
    weight: Float[Tensor, "b t"],
    smoothing: float,
    z: float,
) -> Float[Tensor, ""]:
    """The `Head.loss` of a head over words whose scores are not the product with one table, in chunks of tokens. If
    there are several, the scores of a chunk are computed again for its gradient, so that they are never all kept."""
    chunk = max(1, _SCORES * (1 if h.device.type == "cpu" else 8) // scores_per_token)
    tokens = (x[None].split(chunk, dim=1) for x in tokens_with_weight(h, targets, weight))  # [1 n ...]
    calls = [(x, frame, words, factors, smoothing, z) for x, words, factors in zip(*tokens, strict=True)]
    if len(calls) == 1:
        return loss(*calls[0])
    # heads draw no random numbers, so there is no state of a generator to restore
    losses = [checkpoint(loss, *call, use_reentrant=False, preserve_rng_state=False) for call in calls]
    return torch.stack(losses).sum()


def _width(h: Tensor, vocab: int) -> int:
    """Allocated width of a row of logits. No padding on a CPU, where half-precision products may read NaN from it."""
    return vocab if h.device.type == "cpu" else -(-vocab // _ALIGNED) * _ALIGNED


class _How(NamedTuple):
    smoothing: float
    z: float
    learns: bool
    cap: float = 0.0


Four = tuple[Tensor, Tensor, Tensor, Tensor]
"""The loss, and its gradients with respect to h, weight and bias; empty if not needed."""
_SCHEMA = (
    "(Tensor h, Tensor weight, Tensor? bias, Tensor targets, Tensor weights, float[] how, int chunk, bool learns)"
    " -> (Tensor, Tensor, Tensor, Tensor)"
)


def _chunked(
    h: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    weights: Tensor,
    how: list[float],
    chunk: int,
    learns: bool,
) -> Four:
    at = weights.nonzero()[:, 0] if h.device.type == "cpu" else None
    tokens = (h, targets, weights) if at is None or len(at) == len(h) else (h[at], targets[at], weights[at])
    with torch.autocast(h.device.type, enabled=False):
        total, by_h, by_weight, by_bias = _in_chunks(*tokens, weight, bias, chunk, _How(how[0], how[1], learns, how[2]))
    if learns and at is not None and len(at) < len(h):
        by_h = torch.zeros_like(h).index_copy_(0, at, by_h)
    return total, by_h, by_weight.to(weight.dtype), by_bias if bias is None else by_bias.to(bias.dtype)


_operator = torch.library.custom_op("anyformer::cross_entropy", _chunked, mutates_args=(), schema=_SCHEMA)


@_operator.register_fake
def _shapes(h: Tensor, weight: Tensor, bias: Tensor | None, *others: Any) -> Four:
    total = h.new_empty((), dtype=at_least_float32(h))
    inputs = (h, weight, h.new_empty(0) if bias is None else bias)
    by_h, by_weight, by_bias = (torch.empty_like(x) if others[-1] else x.new_empty(0) for x in inputs)
    return total, by_h, by_weight, by_bias


def _save(ctx: Any, inputs: tuple[Any, ...], output: Four) -> None:
    ctx.save_for_backward(*output[1:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)  # zeros as large as the table, which are not needed
    ctx.has_bias = inputs[2] is not None


def _backward(ctx: Any, slope: Tensor, *_: None) -> tuple[Tensor | None, ...]:
    by_h, by_weight, by_bias = (gradient * slope for gradient in ctx.saved_tensors)
    return by_h, by_weight, by_bias if ctx.has_bias else None, None, None, None, None, None


_operator.register_autograd(_backward, setup_context=_save)


@register_flop_formula(torch.ops.anyformer.cross_entropy)
def _flops(h: torch.Size, weight: torch.Size, *others: Any, out_shape: Any) -> int:
    """FLOPs of the three products, or of one without gradients."""
    return 2 * h[0] * weight[0] * weight[1] * (3 if others[-1] else 1)


def _in_chunks(
    h: Tensor, targets: Tensor, weights: Tensor, weight: Tensor, bias: Tensor | None, chunk: int, how: _How
) -> Four:
    sums, vocab = at_least_float32(h), len(weight)
    table, shift = weight.to(h.dtype), None if bias is None else bias.to(h.dtype)
    silent = weights == 0  # tokens of weight 0 may hold any values
    x, targets = h.clone().masked_fill_(silent[:, None], 0.0), targets.masked_fill(silent, 0)
    weights, losses = weights.to(sums), torch.empty_like(weights, dtype=sums)
    room = h.new_empty(min(chunk, len(h)), _width(h, vocab))
    by_weight = h.new_empty(0)
    if how.learns:  # written by the first chunk; in half precision if the table and h are, and there are few chunks
        dtype = sums if weight.dtype != h.dtype or len(h) > _FEW * chunk else weight.dtype
        by_weight = torch.empty_like(weight, dtype=dtype) if len(h) else torch.zeros_like(weight)
    by_bias = torch.zeros_like(bias, dtype=sums) if how.learns and bias is not None else h.new_empty(0)
    for start in range(0, len(h), chunk):
        part = slice(start, start + chunk)
        rows = room[: len(x[part])]
        logits = rows[:, :vocab]  # [c v]
        if shift is None:
            torch.mm(x[part], table.T, out=logits)
        else:
            torch.addmm(shift, x[part], table.T, out=logits)
        _consume_all(rows, logits, targets[part], weights[part], losses[part], how)
        if how.learns:
            _add_product(by_weight, logits.T, x[part], first=start == 0)
            torch.mm(logits, table, out=x[part])  # overwrites the chunk's hidden states, which are no longer needed
        if how.learns and bias is not None:
            by_bias += logits.sum(0, dtype=sums)
    return losses.sum(), x if how.learns else h.new_empty(0), by_weight, by_bias


def _add_product(total: Tensor, a: Tensor, b: Tensor, *, first: bool) -> None:
    """total += a b in the dtype of total; the first product overwrites it."""
    if total.dtype == a.dtype:
        total.addmm_(a, b, beta=0 if first else 1)
    elif total.is_cuda:
        torch.ops.aten.addmm.dtype_out(total, a, b, total.dtype, beta=0 if first else 1, out=total)
    elif first:
        total.copy_(a @ b)
    else:
        total += a @ b


def _consume_all(rows: Tensor, logits: Tensor, targets: Tensor, weights: Tensor, losses: Tensor, how: _How) -> None:
    """Writes the losses of a chunk, and overwrites its logits by their gradient; `rows`: logits with padding."""
    if supports_triton(logits) and weights.dtype == torch.float32:
        launch(rows, logits.shape[1], targets, weights, losses, how)
        return
    scores, few = logits.to(weights.dtype), len(logits)
    if logits.device.type == "cpu":  # rows are read several times: a few that fit into the cache
        few = max(1, _CACHE // (logits.shape[1] * scores.element_size()))
    for parts in zip(scores.split(few), targets.split(few), weights.split(few), losses.split(few), strict=True):
        parts[3].copy_(_consume(*parts[:3], how))
    if how.learns and scores.dtype != logits.dtype:
        logits.copy_(scores)


def _consume(logits: Tensor, targets: Tensor, weights: Tensor, how: _How) -> Tensor:
    """The losses of some rows; logits are overwritten by their gradient."""
    at, smooth = targets[:, None], how.smoothing
    slope = None
    if how.cap:
        logits.div_(how.cap).tanh_()
        slope = 1 - logits.square() if how.learns else None
        logits.mul_(how.cap)
    top = logits.amax(-1, keepdim=True)
    logits.sub_(top)
    target_logit = (1 - smooth) * logits.gather(1, at)[:, 0]
    if smooth:
        target_logit = target_logit + smooth * logits.mean(-1)
    mass = logits.exp_().sum(-1)
    lse = mass.log() + top[:, 0]
    if how.learns:
        logits.mul_((weights * (1 + 2 * how.z * lse) / mass)[:, None])
        if smooth:
            logits.sub_((weights * smooth / logits.shape[1])[:, None])
        logits.scatter_add_(1, at, -(1 - smooth) * weights[:, None])
    if slope is not None:
        logits.mul_(slope)
    return weights * (mass.log() - target_logit + how.z * lse.square())
