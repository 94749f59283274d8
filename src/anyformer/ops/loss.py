"""Cross-entropy over a large vocabulary, from hidden states: all logits at once never exist.

loss = sum_i w_i [lse_i - (1 - s) l_{i,y_i} - s mean_v l_iv + z lse_i^2],  l_i = W h_i + b,  lse_i = log sum_v e^{l_iv}
s smooths the labels (arXiv 1512.00567), z keeps the logits near zero (arXiv 2204.02311). Tokens go through in chunks,
and each chunk's gradients are made while its logits are there: what is kept is as large as h and W.
A compiler sees one operator and does not look inside: the chunks stay chunks, and their number is no part of a graph.
On a GPU one kernel makes losses and gradient of a chunk's logits: `loss_kernel`.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from anyformer.ops.triton_support import TRITON_INSTALLED, runs_triton

if TRITON_INSTALLED:
    from anyformer.ops.kernels.loss_kernel import launch
else:
    launch = None  # type: ignore[assignment]

_CHUNK_CPU = 256  # tokens: stays near the caches, and still feeds the matrix products
_CACHE = 1 << 21  # bytes that a core works on at its own speed
_ROOM = 15 << 25  # bytes of logits at a time elsewhere: enough tokens that adding to the table's gradient costs little
_ALIGNED = 64  # logits: a row begins at a whole line of the cache, or products of it take several times as long
_FEW = 16  # chunks whose sum may be rounded to half precision after each: no more than three times what once costs


def cross_entropy(
    h: Float[Tensor, "*n d"],
    weight: Float[Tensor, "v d"],
    targets: Int[Tensor, "*n"],
    weights: Float[Tensor, "*n"],
    *,
    bias: Float[Tensor, " v"] | None = None,
    smoothing: float = 0.0,
    z: float = 0.0,
    chunk: int | None = None,
) -> Float[Tensor, ""]:
    """The weighted sum over tokens; what those of weight 0 hold does not matter."""
    h, targets, weights = h.flatten(0, -2), targets.flatten(), weights.flatten()
    learns = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (h, weight, bias))
    kind = h.device.type
    if torch.is_autocast_enabled(kind):
        h = h.to(torch.get_autocast_dtype(kind))
    size = chunk or _tokens_at_once(h, len(weight))
    total: Tensor = _chunked(h, weight, bias, targets, weights, [smoothing, z], size, learns)[0]
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
) -> Float[Tensor, ""]:
    """The definition, with all logits: what the chunks are tested against."""
    logits = F.linear(h, weight, bias)
    words = logits.log_softmax(-1)
    loss = -(1 - smoothing) * words.gather(1, targets[:, None])[:, 0] - smoothing * words.mean(-1)
    return (weights * (loss + z * logits.logsumexp(-1).square())).sum()


def kept(
    h: Float[Tensor, "*n d"], targets: Int[Tensor, "*n"], weights: Float[Tensor, "*n"]
) -> tuple[Float[Tensor, "m d"], Int[Tensor, " m"], Float[Tensor, " m"]]:
    """The tokens that count, in one row. In a compiled graph, whose sizes may not depend on data, all stay; and on a
    GPU, where the host would have to wait until it knows how many there are."""
    h, targets, weights = h.flatten(0, -2), targets.flatten(), weights.flatten()
    if torch.compiler.is_compiling() or h.device.type != "cpu":
        return h, targets, weights
    at = weights.nonzero()[:, 0]
    return (h, targets, weights) if len(at) == len(weights) else (h[at], targets[at], weights[at])


def _tokens_at_once(h: Tensor, vocab: int) -> int:
    if h.device.type == "cpu":
        return _CHUNK_CPU
    return max(512, _ROOM // (_width(h, vocab) * h.dtype.itemsize) // 128 * 128)


def _width(h: Tensor, vocab: int) -> int:
    """Of a row of logits. On a CPU half-precision products read, times 0, what is behind a row, which may be NaN."""
    return vocab if h.device.type == "cpu" else -(-vocab // _ALIGNED) * _ALIGNED


class _How(NamedTuple):
    smoothing: float
    z: float
    learns: bool


Four = tuple[Tensor, Tensor, Tensor, Tensor]
"""The loss, and its gradients by h, weight and bias; nothing in them where nobody asks."""
_SCHEMA = (
    "(Tensor h, Tensor weight, Tensor? bias, Tensor targets, Tensor weights, float[] how, int chunk, bool learns)"
    " -> (Tensor, Tensor, Tensor, Tensor)"
)


@torch.library.custom_op("anyformer::cross_entropy", mutates_args=(), schema=_SCHEMA)
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
    given = (h, targets, weights) if at is None or len(at) == len(h) else (h[at], targets[at], weights[at])
    with torch.autocast(h.device.type, enabled=False):
        total, by_h, by_weight, by_bias = _in_chunks(*given, weight, bias, chunk, _How(how[0], how[1], learns))
    if learns and at is not None and len(at) < len(h):
        by_h = torch.zeros_like(h).index_copy_(0, at, by_h)
    return total, by_h, by_weight.to(weight.dtype), by_bias if bias is None else by_bias.to(bias.dtype)


@_chunked.register_fake
def _shapes(h: Tensor, weight: Tensor, bias: Tensor | None, *others: Any) -> Four:
    total = h.new_empty((), dtype=torch.promote_types(h.dtype, torch.float32))
    given = (h, weight, h.new_empty(0) if bias is None else bias)
    by_h, by_weight, by_bias = (torch.empty_like(x) if others[-1] else x.new_empty(0) for x in given)
    return total, by_h, by_weight, by_bias


def _save(ctx: Any, inputs: tuple[Any, ...], output: Four) -> None:
    ctx.save_for_backward(*output[1:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)  # as large as the table, and nobody asks for them
    ctx.has_bias = inputs[2] is not None


def _backward(ctx: Any, slope: Tensor, *_: None) -> tuple[Tensor | None, ...]:
    by_h, by_weight, by_bias = (gradient * slope for gradient in ctx.saved_tensors)
    return by_h, by_weight, by_bias if ctx.has_bias else None, None, None, None, None, None


_chunked.register_autograd(_backward, setup_context=_save)


@register_flop_formula(torch.ops.anyformer.cross_entropy)
def _flops(h: torch.Size, weight: torch.Size, *others: Any, out_shape: Any) -> int:
    """Of the three products, or of one where nothing learns."""
    return 2 * h[0] * weight[0] * weight[1] * (3 if others[-1] else 1)


def _in_chunks(
    h: Tensor, targets: Tensor, weights: Tensor, weight: Tensor, bias: Tensor | None, chunk: int, how: _How
) -> Four:
    sums, vocab = torch.promote_types(h.dtype, torch.float32), len(weight)
    table, shift = weight.to(h.dtype), None if bias is None else bias.to(h.dtype)
    silent = weights == 0  # what these hold may be anything
    x, targets = h.clone().masked_fill_(silent[:, None], 0.0), targets.masked_fill(silent, 0)
    weights, losses = weights.to(sums), torch.empty_like(weights, dtype=sums)
    room = h.new_empty(min(chunk, len(h)), _width(h, vocab))
    by_weight = _empty_sum(weight, h, chunk) if how.learns else h.new_empty(0)
    by_bias = torch.zeros_like(bias, dtype=sums) if how.learns and bias is not None else h.new_empty(0)
    for start in range(0, len(h), chunk):
        part = slice(start, start + chunk)
        rows = room[: len(x[part])]
        logits = _scores(x[part], table, shift, rows[:, :vocab])  # [c v]
        _consume_all(rows, logits, targets[part], weights[part], losses[part], how)
        if how.learns:
            _add_product(by_weight, logits.T, x[part], first=start == 0)
            torch.mm(logits, table, out=x[part])  # the chunk's hidden states have done their work
        if how.learns and bias is not None:
            by_bias += logits.sum(0, dtype=sums)
    return losses.sum(), x if how.learns else h.new_empty(0), by_weight, by_bias


def _scores(x: Tensor, table: Tensor, shift: Tensor | None, out: Tensor) -> Tensor:
    if shift is None:
        return torch.mm(x, table.T, out=out)
    return torch.addmm(shift, x, table.T, out=out)


def _empty_sum(weight: Tensor, h: Tensor, chunk: int) -> Tensor:
    """For the table's gradient, which the first chunk writes. In half precision, if that is the table's and all of the
    products': it is as large as the table, and every chunk reads and writes it."""
    whole = weight.dtype != h.dtype or len(h) > _FEW * chunk
    dtype = torch.promote_types(h.dtype, torch.float32) if whole else weight.dtype
    return torch.empty_like(weight, dtype=dtype) if len(h) else torch.zeros_like(weight)


def _add_product(total: Tensor, a: Tensor, b: Tensor, *, first: bool) -> None:
    """total += a b, in the precision of the total; the first one is written."""
    if total.dtype == a.dtype:
        total.addmm_(a, b, beta=0 if first else 1)
    elif total.is_cuda:
        torch.ops.aten.addmm.dtype_out(total, a, b, total.dtype, beta=0 if first else 1, out=total)
    elif first:
        total.copy_(a @ b)
    else:
        total += a @ b


def _consume_all(rows: Tensor, logits: Tensor, targets: Tensor, weights: Tensor, losses: Tensor, how: _How) -> None:
    """Writes the losses of a chunk, and the gradient by its logits over them; rows hold those and what is between."""
    if weights.dtype == torch.float32 and runs_triton(logits.device):
        launch(rows, logits.shape[1], targets, weights, losses, how)
        return
    wide, few = logits.to(weights.dtype), len(logits)
    if logits.device.type == "cpu":  # rows that are read again and again: few at a time
        few = max(1, _CACHE // (logits.shape[1] * wide.element_size()))
    for parts in zip(wide.split(few), targets.split(few), weights.split(few), losses.split(few), strict=True):
        parts[3].copy_(_consume(*parts[:3], how))
    if how.learns and wide.dtype != logits.dtype:
        logits.copy_(wide)


def _consume(logits: Tensor, targets: Tensor, weights: Tensor, how: _How) -> Tensor:
    """The losses of some rows; logits become the gradient by them, in the same memory."""
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
    return weights * (mass.log() - wanted + how.z * lse.square())
