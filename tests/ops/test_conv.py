"""Convolutions: what the kernel meets, against the definition and against torch's."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core import Frame
from anyformer.ops.convolution import Span, back_in_place, conv_loop, laid, left_behind, weighted, windows

LENGTHS = [1, 17, 63, 64, 65]
SPANS = [Span(1), Span(3), Span(4, 2), Span(3, 4, causal=False), Span(4, 1, causal=False)]


def fast(x: Tensor, weight: Tensor, span: Span, frame: Frame | None = None) -> Tensor:
    row = laid(x, frame or Frame(), span)
    return back_in_place(F.linear(windows(row, span), weight.flatten(1)), row)


@pytest.mark.row("RNN-15", clause="y_t = sum_(j<k) W_j x_(t+j-offset)")
@pytest.mark.parametrize("span", SPANS, ids=str)
@pytest.mark.parametrize("length", LENGTHS)
def test_the_fast_way_is_the_definition_with_its_gradients(length: int, span: Span) -> None:
    x = torch.randn(2, length, 5, dtype=torch.double, requires_grad=True)
    weight = torch.randn(4, span.taps, 5, dtype=torch.double, requires_grad=True)
    mine, theirs = fast(x, weight, span), conv_loop(x, weight, span)
    torch.testing.assert_close(mine, theirs)
    pull = torch.randn_like(mine)
    for a, b in zip(*(torch.autograd.grad(y, (x, weight), pull) for y in (mine, theirs)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.row("RNN-15", clause="y_t = sum_(j<k) W_j x_(t+j-offset)")
@pytest.mark.parametrize("span", SPANS, ids=str)
def test_it_is_torchs_convolution(span: Span) -> None:
    x, weight = torch.randn(2, 19, 5), torch.randn(4, span.taps, 5)
    padded = F.pad(x.mT, (span.before, span.reach - span.before))
    expected = F.conv1d(padded, weight.transpose(1, 2), dilation=span.dilation).mT
    torch.testing.assert_close(fast(x, weight, span), expected)


@pytest.mark.parametrize("span", SPANS, ids=str)
def test_documents_of_a_row_do_not_meet_and_holes_are_not_there(span: Span) -> None:
    x, weight = torch.randn(1, 12, 5), torch.randn(4, span.taps, 5)
    segments = torch.tensor([[0] * 5 + [1] * 7])
    packed = fast(x, weight, span, Frame(segments=segments))
    torch.testing.assert_close(packed, conv_loop(x, weight, span, segments))
    valid = torch.tensor([[True, False, True, True, False, True] * 2])
    holes = fast(x, weight, span, Frame(valid=valid))
    torch.testing.assert_close(holes[valid][None], conv_loop(x[valid][None], weight, span))


def test_the_state_is_the_last_valid_tokens() -> None:
    x, span = torch.randn(2, 6, 3), Span(3, 2)
    past = torch.zeros(2, span.before, 3)
    valid = torch.arange(6) < torch.tensor([[6], [3]])
    row = laid(x, Frame(positions=torch.arange(6).expand(2, -1), valid=valid), span, past)
    kept = left_behind(row, past)
    assert torch.equal(kept[0], x[0, 2:])
    assert torch.equal(kept[1], torch.cat((torch.zeros(1, 3), x[1, :3])))


@pytest.mark.row(
    "NAR-38",
    clause=(
        "kernel softmax-normalised and shared over H groups of channels",
        "equals F.conv1d(groups=d) with the softmaxed, expanded kernel",
    ),
)
@pytest.mark.parametrize("causal", [True, False])
def test_a_shared_kernel_is_a_convolution_of_each_channel(causal: bool) -> None:
    x, kernel, span = torch.randn(2, 17, 12), torch.randn(3, 5).softmax(-1), Span(5, causal=causal)
    padded = F.pad(x.mT, (span.before, span.reach - span.before))
    expected = F.conv1d(padded, kernel.repeat_interleave(4, dim=0)[:, None], groups=12).mT
    torch.testing.assert_close(weighted(laid(x, Frame(), span), span, kernel), expected)
