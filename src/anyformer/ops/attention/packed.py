"""Attention under a band of distances (causal, window), in plain rows or inside packed documents.

No dense mask is built, and forbidden pairs are skipped: on a GPU by a kernel that knows the bounds of each token's
document, or else by flash attention; on a CPU by one call for each packed document. The kernel pays where documents are
short, so that the next one begins inside the same block of tokens. It is one operator, with its backward pass as
another, both opaque to a compiler; gradients are deterministic. Kernels: `packed_kernel`; definition: `attend_loop`.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from anyformer.core.frame import DocumentBounds
from anyformer.core.masks import Band
from anyformer.ops.attention.blocked import fits_flash, flash_band
from anyformer.ops.attention.call import AttentionCall
from anyformer.ops.devices import TRITON, supports_triton

if TRITON:
    from anyformer.ops.kernels.packed_kernel import KernelInputs, by_keys, by_queries, forward, plan

_CHANNELS = (16, 32, 64)
"""Supported head sizes: multiples of a tile; wider heads leave no registers for two accumulators."""


Parts = Sequence[Tensor]
"""Queries [n h c], keys and values [n g c]; or one tensor [n h+2g c] of which they are slices, side by side: then their
gradient is one tensor, too, and needs no concatenation."""


def fits_kernel(q: Tensor, k: Tensor, v: Tensor, scale: float) -> bool:
    """True: the kernels support the device, the dtype, the memory layout and the (positive) scale."""
    return q.shape[-1] in _CHANNELS and scale > 0 and fits_flash(q, k, v) and supports_triton(q)


def prefers_kernel(q: Tensor, k: Tensor, v: Tensor, scale: float) -> bool:
    """True inside a compiled graph: outside, the Python around an operator takes longer than the kernels save."""
    return torch.compiler.is_compiling() and fits_kernel(q, k, v, scale)


def attend_packed(
    parts: Parts, groups: int, band: Band, scale: float, documents: DocumentBounds
) -> Float[Tensor, "n h c"]:
    """Attention in concatenated documents. Groups of query heads may share a key head."""
    n = len(parts[0])
    spans, average = first_and_last(documents, n), n // len(documents.bounds)
    y: Tensor = _attend([*parts], groups, [*spans], *band.limits(), average, scale)[0]
    return y


def attend_rows(parts: Parts, groups: int, band: Band, scale: float) -> Float[Tensor, "b t h c"]:
    """Attention in rows [b t ..], each of which is one document."""
    rows, length = parts[0].shape[:2]
    y: Tensor = _attend([x.flatten(0, 1) for x in parts], groups, [], *band.limits(), length, scale)[0]
    return y.view(rows, length, *y.shape[1:])


def first_and_last(documents: DocumentBounds, n: int) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"]]:
    """Begin and end of each token's document. In plain torch, so that a graph computes it once for all layers."""
    bounds = documents.bounds
    following = torch.searchsorted(bounds, torch.arange(n, dtype=bounds.dtype, device=bounds.device), right=True)
    return bounds[following - 1], bounds[following]


def _cut(parts: list[Tensor], groups: int) -> tuple[Tensor, Tensor, Tensor]:
    if len(parts) == 1:
        return parts[0].split_with_sizes((parts[0].shape[1] - 2 * groups, groups, groups), dim=1)  # type: ignore[return-value]
    q, k, v = parts
    return q, k, v


@torch.library.custom_op("anyformer::attend_packed", mutates_args=())
def _attend(
    parts: list[Tensor], groups: int, spans: list[Tensor], back: int, ahead: int, length: int, scale: float
) -> tuple[Tensor, Tensor]:
    """y, and lse [h n]. `spans`: first and last of each token, if documents have this length on average; empty if all
    have exactly this length."""
    inputs = _kernel_inputs(parts, groups, spans, back, ahead, length, scale)
    with torch.cuda.device_of(parts[0]):
        return forward(inputs, plan(length)[0])


@_attend.register_fake
def _(parts: list[Tensor], groups: int, *others: Any) -> tuple[Tensor, Tensor]:
    q = _cut(parts, groups)[0]
    return _alike(q), q.new_empty(q.shape[1], q.shape[0], dtype=torch.float32)


@torch.library.custom_op("anyformer::attend_packed_backward", mutates_args=())
def _gradients(
    outputs: list[Tensor],
    parts: list[Tensor],
    groups: int,
    spans: list[Tensor],
    back: int,
    ahead: int,
    length: int,
    scale: float,
) -> list[Tensor]:
    """Gradients with respect to the parts. `outputs`: y, lse and the gradient with respect to y."""
    inputs, (y, lse, dy) = _kernel_inputs(parts, groups, spans, back, ahead, length, scale), outputs
    dy = dy.contiguous()
    gradients = [_alike(x) for x in parts]
    dq, dk, dv = _cut(gradients, groups)
    _, for_queries, for_keys = plan(length)
    with torch.cuda.device_of(dy):
        by_keys(inputs, by_queries(inputs, y, lse, dy, dq, for_queries), dy, dk, dv, for_keys)
    return gradients


@_gradients.register_fake
def _(outputs: list[Tensor], parts: list[Tensor], *others: Any) -> list[Tensor]:
    return [_alike(x) for x in parts]


def _kernel_inputs(parts: list[Tensor], groups: int, spans: list[Tensor], *limits: Any) -> "KernelInputs":
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in _cut(parts, groups))  # contiguous channels
    return KernelInputs(q, k, v, *(spans or (None, None)), *limits)


def _alike(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    parts, ctx.groups, spans, *ctx.limits = inputs
    ctx.save_for_backward(*output, *spans, *parts)
    ctx.spans = len(spans)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)  # lse gets no gradient


def _backward(ctx: Any, dy: Tensor, _: None) -> tuple[Any, ...]:
    y, lse, *others = ctx.saved_tensors
    spans, parts = others[: ctx.spans], others[ctx.spans :]
    gradients = _gradients([y, lse, dy], parts, ctx.groups, spans, *ctx.limits)
    return gradients, None, [None for _ in spans], None, None, None, None


_attend.register_autograd(_backward, setup_context=_save)

_LEAST_LENGTH = 16
"""Average tokens of a document on a CPU; many short ones are cheaper in one call with a mask."""
_SHORT_ROW = 128
"""Tokens of a row up to which one mask for all layers is cheaper on a GPU as well."""


def prefers_band(q: Tensor, k: Tensor, v: Tensor, call: AttentionCall) -> bool:
    """True: rows without padding, a sparse rule that is a band, and a device with a kernel for it."""
    return call.is_sparse() and call.valid is None and call.rule.band is not None and fits_flash(q, k, v)


def attend_band(
    q: Float[Tensor, "b t h c"],
    k: Float[Tensor, "b t g c"],
    v: Float[Tensor, "b t g c"],
    call: AttentionCall,
    scale: float,
    fused: Tensor | None = None,
) -> Float[Tensor, "b t h c"]:
    """Attention of every token to the tokens of its row that lie in the band; `fused` as in `Keys`."""
    band = call.rule.band
    assert band is not None
    if prefers_kernel(q, k, v, scale):
        return attend_rows((q, k, v) if fused is None else (fused,), k.shape[2], band, scale)
    return flash_band(q, k, v, band, scale)


def prefers_documents(q: Tensor, k: Tensor, v: Tensor, call: AttentionCall) -> bool:
    """True: the rule is a band inside each document, the bounds are known, and the device has a kernel."""
    band = call.rule.band_in_document
    if band is None or call.documents is None or not call.packed:
        return False
    if q.device.type == "cpu":
        average = q.shape[0] * q.shape[1] / len(call.documents.bounds)
        unbounded = band.back is None and band.ahead in (None, 0)
        return unbounded and average >= _LEAST_LENGTH and not torch.compiler.is_compiling()
    return q.shape[1] > _SHORT_ROW and fits_flash(q, k, v)


def attend_documents(
    q: Float[Tensor, "b t h c"],
    k: Float[Tensor, "b t g c"],
    v: Float[Tensor, "b t g c"],
    call: AttentionCall,
    scale: float,
    fused: Tensor | None = None,
) -> Float[Tensor, "b t h c"]:
    """Attention of every token to the tokens of its own document that lie in the band; `fused` as in `Keys`."""
    band, documents = call.rule.band_in_document, call.documents
    assert band is not None and documents is not None
    flat = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
    if q.device.type == "cpu":
        return _each(*flat, documents, causal=band.ahead == 0, scale=scale).view_as(q)
    if prefers_kernel(*flat, scale):
        parts = flat if fused is None else (fused.flatten(0, 1),)
        return attend_packed(parts, k.shape[2], band, scale, documents).view_as(q)
    return flash_band(*flat, band, scale, documents).view_as(q)


def _each(q: Tensor, k: Tensor, v: Tensor, documents: DocumentBounds, *, causal: bool, scale: float) -> Tensor:
    lengths, grouped = [length for length in documents.bounds.diff().tolist() if length], q.shape[1] != k.shape[1]
    pieces = (x.transpose(0, 1)[None].split(lengths, dim=2) for x in (q, k, v))  # [1 h n c]
    outputs = [
        F.scaled_dot_product_attention(q_n, k_n, v_n, is_causal=causal, scale=scale, enable_gqa=grouped)
        for q_n, k_n, v_n in zip(*pieces, strict=True)
    ]
    return torch.cat(outputs, dim=2)[0].transpose(0, 1)
