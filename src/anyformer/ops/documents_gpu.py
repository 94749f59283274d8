"""Attention inside packed documents as one operator of a GPU, with its backward pass as another: a compiler does not
look inside. It pays where documents are short: the next one begins inside the same block of tokens.

Whom a token may see is two numbers, `first` and `last`; nothing is as large as the pairs of tokens, and gradients are
the same every time. The kernels are in `document_kernel`, the definition is `attention.attend_loop`.
"""

import importlib.util
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from anyformer.core.frame import Documents
from anyformer.core.masks import Band
from anyformer.ops.flash_band import fits_flash

if importlib.util.find_spec("triton"):  # which a CPU does without
    from anyformer.ops.document_kernel import Given, by_keys, by_queries, forward, plan
else:
    forward = None  # type: ignore[assignment]

_CHANNELS = (16, 32, 64, 128)
"""Of a head: what a product of tiles can be made of."""


def fits_kernel(q: Tensor, k: Tensor, v: Tensor, scale: float) -> bool:
    """The device, the precision and the layout are the kernels'; a score grows with the product."""
    return q.shape[-1] in _CHANNELS and scale > 0 and fits_flash(q, k, v) and forward is not None


def attend_packed(
    q: Float[Tensor, "n h c"],
    k: Float[Tensor, "n g c"],
    v: Float[Tensor, "n g c"],
    band: Band,
    scale: float,
    documents: Documents,
) -> Float[Tensor, "n h c"]:
    """Documents laid end to end. Groups of query heads may share a key head."""
    average = len(q) // len(documents.bounds)
    y: Tensor = _attend(q, k, v, *first_and_last(documents, len(q)), *_limits(band), average, scale)[0]
    return y


def attend_rows(
    q: Float[Tensor, "b t h c"], k: Float[Tensor, "b t g c"], v: Float[Tensor, "b t g c"], band: Band, scale: float
) -> Float[Tensor, "b t h c"]:
    """Rows of which each is one document."""
    length, places = q.shape[1], torch.arange(q.shape[0] * q.shape[1], dtype=torch.int32, device=q.device)
    first, flat = places // length * length, [x.flatten(0, 1) for x in (q, k, v)]
    y: Tensor = _attend(*flat, first, first + length, *_limits(band), length, scale)[0]
    return y.view_as(q)


def _limits(band: Band) -> tuple[int, int]:
    back, ahead = (-1 if bound is None else bound for bound in band)
    return back, ahead


def first_and_last(documents: Documents, n: int) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"]]:
    """Where the document of each token begins, and where it ends. Plain torch: a graph has it once for all layers."""
    bounds = documents.bounds
    following = torch.searchsorted(bounds, torch.arange(n, dtype=bounds.dtype, device=bounds.device), right=True)
    return bounds[following - 1], bounds[following]


@torch.library.custom_op("anyformer::attend_packed", mutates_args=())
def _attend(
    q: Tensor, k: Tensor, v: Tensor, first: Tensor, last: Tensor, back: int, ahead: int, average: int, scale: float
) -> tuple[Tensor, Tensor]:
    """y, and lse [h n]."""
    given = Given(_row(q), _row(k), _row(v), first, last, back, ahead, scale)
    with torch.cuda.device_of(q):
        return forward(given, plan(q.shape[2], average)[0])


@_attend.register_fake
def _(q: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return _alike(q), q.new_empty(q.shape[1], q.shape[0], dtype=torch.float32)


@torch.library.custom_op("anyformer::attend_packed_backward", mutates_args=())
def _gradients(
    given: list[Tensor], found: list[Tensor], dy: Tensor, back: int, ahead: int, average: int, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    (q, k, v, first, last), (y, lse), dy = given, found, dy.contiguous()
    told = Given(_row(q), _row(k), _row(v), first, last, back, ahead, scale)
    _, for_queries, for_keys = plan(q.shape[2], average)
    with torch.cuda.device_of(q):
        dq, both = by_queries(told, y, lse, dy, for_queries)
        return dq, *by_keys(told, both, dy, for_keys)


@_gradients.register_fake
def _(given: list[Tensor], *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = given[:3]
    return _alike(q), _alike(k), _alike(v)


def _row(x: Tensor) -> Tensor:
    """As it lies, if the channels of a head do so side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _alike(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:5], *output)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)  # nobody asks for that of lse
    ctx.told = inputs[5:]


def _backward(ctx: Any, dy: Tensor, _: None) -> tuple[Tensor | None, ...]:
    *given, y, lse = ctx.saved_tensors
    by = _gradients(given, [y, lse], dy, *ctx.told)
    return *by, *(None for _ in range(6))


_attend.register_autograd(_backward, setup_context=_save)
