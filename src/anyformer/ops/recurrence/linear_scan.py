"""First-order linear recurrences, h_t = a_t h_{t-1} + b_t, element by element; a_t = 0 resets the state.

`linear_scan_loop` is the definition. `linear_scan` cuts the sequence into chunks that run in parallel: first the decay
and the sum of every chunk, then the start states one after the other, then all chunks from their start states. It
multiplies and never divides, so that the strongest decay is a zero and not an overflow; and the backward of a scan is a
scan from the end: g_t = dy_t + a_{t+1} g_{t+1}, da_t = g_t h_{t-1}, db_t = g_t. All compute in at least float32.

On a GPU with Triton a scan is one operator, `linear_scan_gpu`, and its backward pass another, both opaque to a
compiler. Decays that several channels share are read without expanding them, and sequences in their own dtype.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Inexact
from torch import Tensor

from anyformer.ops.devices import TRITON, supports_triton
from anyformer.ops.padding import cut

_LEAST_LENGTH = 16
_WIDE = {"cpu": 1 << 14, "cuda": 1 << 20}
"""Elements of a step from which on compute, not launch overhead, dominates; chunks are added up to this size."""
_FEWEST_CHUNKS = 4
"""Chunks cost a second pass over memory; with fewer than these a loop is faster."""
_BLOCK = 128
"""Channels of a program, which is one warp: one vector for each lane."""


class Channels(NamedTuple):
    """A table of [outer repeats inner] lines of `width`; decays have no repeats, and one value a line if `shared`."""

    outer: int
    repeats: int
    inner: int
    width: int
    shared: bool

    @property
    def lines(self) -> int:
        return self.outer * self.repeats * self.inner

    @property
    def channels(self) -> int:
        return self.lines * self.width

    @property
    def decays(self) -> int:
        return self.outer * self.inner * (1 if self.shared else self.width)

    @property
    def wide(self) -> int:
        """Columns of a block."""
        return int(min(_BLOCK, 1 << (self.width - 1).bit_length()))

    @property
    def high(self) -> int:
        """Lines of a block."""
        return _BLOCK // self.wide

    @property
    def across(self) -> int:
        """Blocks side by side."""
        return -(-self.width // self.wide)

    @property
    def blocks(self) -> int:
        return -(-self.lines // self.high) * self.across

    @property
    def parts(self) -> tuple[int, int, int, int]:
        """Shape of the partial sums of a step's decay gradients, one for each block."""
        return self.outer, self.repeats, self.inner, self.across if self.shared else self.width


if TRITON:
    from anyformer.ops.kernels.linear_scan_kernel import backward, forward


def supports_linear_scan(a: Tensor, b: Tensor) -> bool:
    """True for several real-valued steps in float32 on an NVIDIA GPU with Triton."""
    if not supports_triton(b):
        return False
    single = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32) == torch.float32
    several = a.shape[:2] == b.shape[:2] and b.shape[1] > 1 and b.numel() > 0
    return single and several and channels_of(a.shape[2:], b.shape[2:]) is not None


@torch.library.custom_op("anyformer::linear_scan", mutates_args=())
def linear_scan_gpu(a: Tensor, b: Tensor, start: Tensor) -> Tensor:
    """Every h [b t *d]. `a` has as many dimensions, of size 1 if shared."""
    with torch.cuda.device_of(b):
        return forward(a, b, start, _channels(a, b))


@linear_scan_gpu.register_fake
def _(a: Tensor, b: Tensor, start: Tensor) -> Tensor:
    return torch.empty_like(b, dtype=torch.float32, memory_format=torch.contiguous_format)


@torch.library.custom_op("anyformer::linear_scan_backward", mutates_args=())
def _gradients(a: Tensor, start: Tensor, h: Tensor, dh: Tensor, low: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    with torch.cuda.device_of(h):
        return backward(a, start, h, dh, low, _channels(a, h))


@_gradients.register_fake
def _(a: Tensor, start: Tensor, h: Tensor, dh: Tensor, low: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    by_a, by_start = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (a, start))
    return by_a, torch.empty_like(h, dtype=low), by_start


def _channels(a: Tensor, b: Tensor) -> Channels:
    channels = channels_of(a.shape[2:], b.shape[2:])
    assert channels is not None
    return channels


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], inputs[2], output)
    ctx.low = inputs[1].dtype


def _backward(ctx: Any, dh: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    by_a, by_b, by_start = _gradients(*ctx.saved_tensors, dh, ctx.low)
    return by_a, by_b, by_start


linear_scan_gpu.register_autograd(_backward, setup_context=_save)


def channels_of(a: Sequence[int], b: Sequence[int]) -> Channels | None:
    """The table for the shapes of one step of a and b; None if a broadcasts in another way."""
    if len(a) != len(b) or any(one not in (1, every) for one, every in zip(a, b, strict=True)):
        return None
    kinds: list[str] = []
    sizes: list[int] = []
    for one, every in zip(a, b, strict=True):
        kind = "own" if one == every else "shared"  # as a string: under a compiler sizes are symbols
        if every != 1 and kinds and kinds[-1] == kind:
            sizes[-1] *= every
        elif every != 1:
            kinds.append(kind)
            sizes.append(every)
    shared = bool(kinds) and kinds[-1] == "shared"
    table = sizes if shared else [*sizes[:-1], 1, *sizes[-1:]]
    if len(table) > 4:
        return None
    outer, repeats, inner, width = [1] * (4 - len(table)) + table
    return Channels(outer, repeats, inner, width, shared)


def linear_scan(
    a: Inexact[Tensor, "b t *#d"], b: Inexact[Tensor, "b t *#d"], start: Inexact[Tensor, "b *d"] | None = None
) -> Inexact[Tensor, "b t *d"]:
    """Every h_t, from h_0 = `start` or zero: a loop if short, otherwise chunks, or the kernels of a GPU."""
    if supports_linear_scan(a, b):
        h: Tensor = linear_scan_gpu(a, b, torch.zeros_like(b[:, 0]) if start is None else start.expand_as(b[:, 0]))
        return h
    short = b.shape[1] < _LEAST_LENGTH
    return linear_scan_loop(a, b, start) if short else linear_scan_chunked(a, b, start)


def linear_scan_chunked(a: Tensor, b: Tensor, start: Tensor | None = None) -> Tensor:
    """Every h_t by chunks in parallel: down to 3 sqrt(t) steps if a single step is small."""
    a, b, start = _prepared(a, b, start)
    if torch.compiler.is_compiling():  # dynamo derives the backward itself, and warns of a custom one
        return _in_chunks(a, b, start, False)
    h: Tensor = _LinearScan.apply(a, b, start, False)  # type: ignore[no-untyped-call]
    return h


def linear_scan_loop(a: Tensor, b: Tensor, start: Tensor | None = None) -> Tensor:
    """The definition, token by token: the reference that every fast path is tested against."""
    a, b, start = _prepared(a, b, start)
    return torch.stack([*_steps(a.unbind(1), b.unbind(1), start)], dim=1)


def _prepared(a: Tensor, b: Tensor, start: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    dtype = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32)
    start = torch.zeros_like(b[:, 0], dtype=dtype) if start is None else start.to(dtype)
    return a.to(dtype).expand_as(b), b.to(dtype), start


class _LinearScan(torch.autograd.Function):
    """A scan whose backward is a scan in the other direction, shifted by one token."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, start: Tensor, from_end: bool) -> Tensor:
        h = _in_chunks(a, b, start, from_end)
        ctx.save_for_backward(a, start, h)
        ctx.from_end = from_end
        return h

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        a, start, h = ctx.saved_tensors
        nothing, first = torch.zeros_like(start), -1 if ctx.from_end else 0
        carry = _shifted(a.conj(), nothing, later=ctx.from_end)
        g: Tensor = _LinearScan.apply(carry, grads[0], nothing, not ctx.from_end)  # type: ignore[no-untyped-call]
        before = _shifted(h, start, later=not ctx.from_end)
        return g * before.conj(), g, g[:, first] * a[:, first].conj(), None


def _shifted(x: Tensor, edge: Tensor, later: bool) -> Tensor:
    """x shifted by one token later or earlier, with `edge` in the free place."""
    rest, edge = x[:, :-1] if later else x[:, 1:], edge[:, None]
    return torch.cat((edge, rest) if later else (rest, edge), dim=1)


def _steps(a: Sequence[Tensor], b: Sequence[Tensor], h: Tensor) -> Iterator[Tensor]:
    for a_t, b_t in zip(a, b, strict=True):
        h = torch.addcmul(b_t, a_t, h)
        yield h


def _in_chunks(a: Tensor, b: Tensor, start: Tensor, from_end: bool) -> Tensor:
    length, direction = b.shape[1], -1 if from_end else 1
    most = _WIDE.get(b.device.type, 1) // max(1, b.numel() // length)
    chunk = -(-length // (min(round(math.sqrt(length)), most) if most > _FEWEST_CHUNKS else 1))
    a, b = (cut(x, chunk, pad_front=from_end) for x in (a, b))  # [b n chunk *d]
    a_steps, b_steps = (x.unbind(2)[::direction] for x in (a, b))
    starts = start[:, None]
    if b.shape[1] > 1:
        decay, added = a_steps[0], b_steps[0]  # [b n *d]: over the chunk, of its start state; and by the chunk
        for a_t, b_t in zip(a_steps[1:], b_steps[1:], strict=True):
            decay, added = decay * a_t, torch.addcmul(b_t, a_t, added)
        carried = _steps(decay.unbind(1)[::direction][:-1], added.unbind(1)[::direction][:-1], start)
        starts = torch.stack([start, *carried][::direction], dim=1)
    if torch.compiler.is_compiling():
        h = torch.stack([*_steps(a_steps, b_steps, starts)][::direction], dim=2)
    else:
        h = torch.empty_like(b)
        for a_t, b_t, place in zip(a_steps, b_steps, h.unbind(2)[::direction], strict=True):
            starts = torch.addcmul(b_t, a_t, starts, out=place)
    h = h.flatten(1, 2)
    return h[:, h.shape[1] - length :] if from_end else h[:, :length]
