"""Attention inside packed documents as one operator of a GPU, with its backward pass as another: a compiler does not
look inside. It pays where documents are short: the next one begins inside the same block of tokens.

Whom a token may see is two numbers, `first` and `last`; nothing is as large as the pairs of tokens, and gradients are
the same every time. The kernels are in `document_kernel`, the definition is `attention.attend_loop`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from anyformer.core.frame import Documents
from anyformer.core.masks import Band
from anyformer.ops.attention.flash_band import fits_flash
from anyformer.ops.triton_support import TRITON_INSTALLED

if TRITON_INSTALLED:
    from anyformer.ops.kernels.packed_kernel import KernelInputs, by_keys, by_queries, forward, plan
else:
    forward = None  # type: ignore[assignment]

_CHANNELS = (16, 32, 64)
"""Of a head: what a product of tiles can be made of. Wider ones leave no room for what two products add up."""


Parts = Sequence[Tensor]
"""Queries [n h c], keys and values [n g c]; or one tensor [n h+2g c] of which they are the parts, side by side: then
their gradients come in one piece, too, and nobody has to put them together."""


def fits_kernel(q: Tensor, k: Tensor, v: Tensor, scale: float) -> bool:
    """The device, the precision and the layout are the kernels'; a score grows with the product."""
    return q.shape[-1] in _CHANNELS and scale > 0 and fits_flash(q, k, v) and TRITON_INSTALLED


def worth_kernel(q: Tensor, k: Tensor, v: Tensor, scale: float) -> bool:
    """In a graph: out of it, what Python does around an operator takes longer than the kernels save."""
    return torch.compiler.is_compiling() and fits_kernel(q, k, v, scale)


def attend_packed(parts: Parts, groups: int, band: Band, scale: float, documents: Documents) -> Float[Tensor, "n h c"]:
    """Documents laid end to end. Groups of query heads may share a key head."""
    n = len(parts[0])
    spans, average = first_and_last(documents, n), n // len(documents.bounds)
    y: Tensor = _attend([*parts], groups, [*spans], *_limits(band), average, scale)[0]
    return y


def attend_rows(parts: Parts, groups: int, band: Band, scale: float) -> Float[Tensor, "b t h c"]:
    """Rows [b t ..] of which each is one document."""
    rows, length = parts[0].shape[:2]
    flat = [x.flatten(0, 1) for x in parts]
    y: Tensor = _attend(flat, groups, [], *_limits(band), length, scale)[0]
    return y.view(rows, length, *y.shape[1:])


def first_and_last(documents: Documents, n: int) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"]]:
    """Where the document of each token begins, and where it ends. Plain torch: a graph has it once for all layers."""
    bounds = documents.bounds
    following = torch.searchsorted(bounds, torch.arange(n, dtype=bounds.dtype, device=bounds.device), right=True)
    return bounds[following - 1], bounds[following]


def _limits(band: Band) -> tuple[int, int]:
    back, ahead = (-1 if bound is None else bound for bound in band)
    return back, ahead


def _cut(parts: list[Tensor], groups: int) -> tuple[Tensor, Tensor, Tensor]:
    if len(parts) == 1:
        return parts[0].split_with_sizes((parts[0].shape[1] - 2 * groups, groups, groups), dim=1)  # type: ignore[return-value]
    q, k, v = parts
    return q, k, v


@torch.library.custom_op("anyformer::attend_packed", mutates_args=())
def _attend(
    parts: list[Tensor],
    groups: int,
    spans: list[Tensor],
    back: int,
    ahead: int,
    length: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """y, and lse [h n]. `spans`: first and last, of documents that have this length on average; or all have it."""
    given = _given(parts, groups, spans, back, ahead, length, scale)
    with torch.cuda.device_of(parts[0]):
        return forward(given, plan(length)[0])


@_attend.register_fake
def _(parts: list[Tensor], groups: int, *others: Any) -> tuple[Tensor, Tensor]:
    q = _cut(parts, groups)[0]
    return _alike(q), q.new_empty(q.shape[1], q.shape[0], dtype=torch.float32)


@torch.library.custom_op("anyformer::attend_packed_backward", mutates_args=())
def _gradients(
    found: list[Tensor],
    parts: list[Tensor],
    groups: int,
    spans: list[Tensor],
    back: int,
    ahead: int,
    length: int,
    scale: float,
) -> list[Tensor]:
    """By the parts. `found`: y, lse and the gradient by y."""
    given, (y, lse, dy) = _given(parts, groups, spans, back, ahead, length, scale), found
    dy = dy.contiguous()
    by = [_alike(x) for x in parts]
    dq, dk, dv = _cut(by, groups)
    _, for_queries, for_keys = plan(length)
    with torch.cuda.device_of(dy):
        by_keys(given, by_queries(given, y, lse, dy, dq, for_queries), dy, dk, dv, for_keys)
    return by


@_gradients.register_fake
def _(found: list[Tensor], parts: list[Tensor], *others: Any) -> list[Tensor]:
    return [_alike(x) for x in parts]


def _given(parts: list[Tensor], groups: int, spans: list[Tensor], *told: Any) -> "KernelInputs":
    q, k, v = (_row(x) for x in _cut(parts, groups))
    return KernelInputs(q, k, v, *(spans or (None, None)), *told)


def _row(x: Tensor) -> Tensor:
    """As it lies, if the channels of a head do so side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _alike(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    parts, ctx.groups, spans, *ctx.told = inputs
    ctx.save_for_backward(*output, *spans, *parts)
    ctx.spans = len(spans)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)  # nobody asks for that of lse


def _backward(ctx: Any, dy: Tensor, _: None) -> tuple[Any, ...]:
    y, lse, *others = ctx.saved_tensors
    spans, parts = others[: ctx.spans], others[ctx.spans :]
    by = _gradients([y, lse, dy], parts, ctx.groups, spans, *ctx.told)
    return by, None, [None for _ in spans], None, None, None, None


_attend.register_autograd(_backward, setup_context=_save)
