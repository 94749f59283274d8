"""Convolutions over a sequence, with padding, packed documents and a state.

y_t = sum_{j<k} W_j x_{t + j r - before} ;  before = (k - 1) r in a causal kernel, half of that in a centred one
The tokens under the kernel are concatenated and multiplied by one matrix, which on a CPU is faster than a convolution
(1.0 to 1.5 times, forward and backward) and can stop at the start of a document inside a row. Padding is moved to the
end of a row first, so that a kernel never covers it. `conv_loop` is the definition.

`short_conv` is the causal depthwise convolution in front of a recurrence: y_t = bias + sum_l w_l x_{t-l}, l = 0 .. k-1.
As a sum of k shifted copies, in one pass each, it is as fast as a convolution kernel for three or four taps, and can
stop at the start of a document. The last tap of `weight` multiplies the token itself, as in nn.Conv1d.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from anyformer.core.frame import Frame, State
from anyformer.ops.padding import Compact, compact, take


class Span(NamedTuple):
    """The tokens that a kernel covers: `taps` of them, `dilation` apart; up to the token, or on both sides of it."""

    taps: int
    dilation: int = 1
    causal: bool = True

    @property
    def reach(self) -> int:
        """Distance from the first covered token to the last."""
        return (self.taps - 1) * self.dilation

    @property
    def before(self) -> int:
        """Distance to the earliest covered token; an even kernel has one token less on one side, as in torch."""
        return self.reach if self.causal else self.reach // 2


class ConvolutionRow(NamedTuple):
    """The tokens of a call after the tokens before them, with padding at the end."""

    x: Tensor
    """[b p+t d]"""
    length: int
    """t"""
    document: Tensor | None
    """[b p+t]: document number of each token; None: all tokens belong to one document."""
    order: Compact | None
    """The permutation that moved padding to the end."""


def padding_last(
    x: Shaped[Tensor, "b t d"], frame: Frame, state: State | None
) -> tuple[Shaped[Tensor, "b t d"], Bool[Tensor, "b t"] | None, Compact | None]:
    """The tokens of a call with padding moved to the end, which of them begin a document, and the permutation if there
    is padding."""
    begins = frame.document_starts(x, state)
    if frame.valid is None:
        return x, begins, None
    order = compact(frame.valid)
    return take(x, order.order), None if begins is None else take(begins, order.order), order


def laid(
    x: Shaped[Tensor, "b t d"], frame: Frame, span: Span, past: Shaped[Tensor, "b p d"] | None = None
) -> ConvolutionRow:
    """The row of a call. `past`: the tokens before, as many as the span reaches back."""
    length = x.shape[1]
    x = x if frame.valid is None else x.masked_fill(~frame.valid[..., None], 0.0)
    x, begins, order = padding_last(x, frame, past)
    document = None if begins is None else begins.cumsum(1)
    if past is not None:
        x = torch.cat((past.to(x.dtype), x), dim=1)
        document = None if document is None else F.pad(document, (past.shape[1], 0))
    return ConvolutionRow(x, length, document, order)


def back_in_place(y: Shaped[Tensor, "b t d"], row: ConvolutionRow) -> Shaped[Tensor, "b t d"]:
    """Outputs in the original order of the tokens."""
    return y if row.order is None else take(y, row.order.back)


def left_behind(row: ConvolutionRow, past: Shaped[Tensor, "b p d"]) -> Shaped[Tensor, "b p d"]:
    """The `past` of the next call."""
    known = row.x.shape[1] - row.length
    document = None if row.document is None else row.document[:, known:]
    return last_tokens(past, row.x[:, known:], None if row.order is None else row.order.lengths, document)


def neighbours(row: ConvolutionRow, span: Span) -> Iterator[Shaped[Tensor, "b t d"]]:
    """For each tap, the token that it covers at every position; zeros if there is none."""
    known = row.x.shape[1] - row.length
    sides = (span.before - known, span.reach - span.before)
    x, document = F.pad(row.x, (0, 0, *sides)), None
    if row.document is not None:
        document = F.pad(row.document, sides, value=-1)
        center = document[:, span.before : span.before + row.length]
    for tap in range(span.taps):
        first = tap * span.dilation
        there = x[:, first : first + row.length]
        if document is not None and first != span.before:
            same = document[:, first : first + row.length] == center
            there = there.masked_fill(~same[..., None], 0.0)
        yield there


def windows(row: ConvolutionRow, span: Span) -> Shaped[Tensor, "b t kd"]:
    """The covered tokens of every position, concatenated from the first tap to the last."""
    return torch.cat([*neighbours(row, span)], dim=-1)


def weighted(row: ConvolutionRow, span: Span, kernel: Float[Tensor, "*bt h k"]) -> Float[Tensor, "b t d"]:
    """Depthwise convolution, y_t = sum_j kernel_j x_{t+j}: the d channels are in h groups with one kernel each, which
    may differ between tokens."""
    heads, y = kernel.shape[-2], torch.zeros_like(row.x[:, : row.length]).unflatten(-1, (kernel.shape[-2], -1))
    for there, weight in zip(neighbours(row, span), kernel.unbind(-1), strict=True):
        y = torch.addcmul(y, there.unflatten(-1, (heads, -1)), weight[..., None])
    flat: Tensor = y.flatten(2)
    return flat


def conv_loop(
    x: Float[Tensor, "b t d"], weight: Float[Tensor, "o k d"], span: Span, document: Tensor | None = None
) -> Float[Tensor, "b t o"]:
    """The definition, tap by tap and token by token: the reference for the fast path."""
    y = x.new_zeros(*x.shape[:2], weight.shape[0])
    for t in range(x.shape[1]):
        for tap in range(span.taps):
            s = t + tap * span.dilation - span.before
            if 0 <= s < x.shape[1]:
                live = torch.ones_like(x[:, 0, :1]) if document is None else (document[:, s] == document[:, t])[:, None]
                y[:, t] += (x[:, s] * live) @ weight[:, tap].T
    return y


def short_conv(
    x: Float[Tensor, "b t d"],
    weight: Float[Tensor, "d k"],
    bias: Float[Tensor, " d"] | None = None,
    past: Float[Tensor, "b p d"] | None = None,
    document: Int[Tensor, "b t"] | None = None,
) -> Float[Tensor, "b t d"]:
    """The convolution of x. `past`: the k - 1 tokens before x, or zeros. `document`: how many documents began in x up
    to each token, which sees no token of another document."""
    t, taps = x.shape[1], weight.shape[1]
    row = F.pad(x, (0, 0, taps - 1, 0)) if past is None else torch.cat((past.to(x.dtype), x), dim=1)
    document = None if document is None else F.pad(document, (taps - 1, 0))
    y = x * weight[:, -1] if bias is None else torch.addcmul(bias, x, weight[:, -1])
    for lag in range(1, taps):
        first = taps - 1 - lag
        shifted = row[:, first : first + t]
        if document is not None:
            same = document[:, first : first + t] == document[:, taps - 1 :]
            shifted = shifted.masked_fill(~same[..., None], 0.0)
        y = torch.addcmul(y, shifted, weight[:, -1 - lag])
    return y


def last_tokens(
    past: Shaped[Tensor, "b p d"],
    x: Shaped[Tensor, "b t d"],
    count: Int[Tensor, " b"] | None = None,
    document: Int[Tensor, "b t"] | None = None,
) -> Shaped[Tensor, "b p d"]:
    """The `past` of the next call. `count`: number of valid tokens of each row; None: all. `document`: how many
    documents began in x up to each token; what lies before the last one is set to zero."""
    if document is not None:
        newest = document[:, -1:]
        past = past.masked_fill((newest > 0)[..., None], 0.0)
        x = x if x.shape[1] == 1 else x.masked_fill((document < newest)[..., None], 0.0)
    row, length = torch.cat((past, x.to(past.dtype)), dim=1), past.shape[1]
    if count is None:  # contiguous like an empty past, so that one graph serves all steps
        return row[:, row.shape[1] - length :].contiguous()
    return take(row, count[:, None] + torch.arange(length, device=x.device))
