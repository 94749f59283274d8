"""The short convolution against nn.Conv1d, with documents, with a past; and the order in which padding comes last."""

import torch
import torch.nn.functional as F

from anyformer.ops.convolution import last_tokens, short_conv
from anyformer.ops.padding import compact, take

B, T, D, K = 2, 9, 3, 4


def test_it_is_a_causal_depthwise_convolution() -> None:
    x, weight, bias = torch.randn(B, T, D), torch.randn(D, K), torch.randn(D)
    expected = F.conv1d(F.pad(x.mT, (K - 1, 0)), weight[:, None], bias, groups=D).mT
    torch.testing.assert_close(short_conv(x, weight, bias), expected)


def test_no_document_sees_another() -> None:
    x, weight, begins = torch.randn(B, T, D), torch.randn(D, K), torch.zeros(B, T, dtype=torch.bool)
    begins[:, 5] = True
    pieces = [short_conv(piece, weight) for piece in x.split([5, T - 5], dim=1)]
    torch.testing.assert_close(short_conv(x, weight, document=begins.cumsum(1)), torch.cat(pieces, dim=1))


def test_the_past_goes_on_where_a_call_ended() -> None:
    x, weight, past, pieces = torch.randn(B, T, D), torch.randn(D, K), torch.zeros(B, K - 1, D), []
    for piece in x.split([1, 2, 6], dim=1):
        pieces.append(short_conv(piece, weight, None, past))
        past = last_tokens(past, piece)
    torch.testing.assert_close(torch.cat(pieces, dim=1), short_conv(x, weight))
    torch.testing.assert_close(past, x[:, -3:])


def test_only_tokens_that_are_there_become_past() -> None:
    x, past = torch.arange(1.0, 5.0)[None, :, None].expand(3, -1, -1), torch.tensor([-2.0, -1.0, 0.0])[None, :, None]
    kept = last_tokens(past.expand(3, -1, -1), x, torch.tensor([0, 1, 4]))
    assert kept[..., 0].tolist() == [[-2, -1, 0], [-1, 0, 1], [2, 3, 4]]


def test_a_document_that_begins_inside_a_call_is_all_that_the_next_call_sees() -> None:
    x, weight = torch.randn(B, T, D), torch.randn(D, K)
    document = torch.tensor([[0, 0, 0, 1, 1]]).expand(B, -1)
    past = last_tokens(torch.randn(B, K - 1, D), x[:, :5], document=document)
    continued = short_conv(x[:, 5:], weight, None, past)
    torch.testing.assert_close(continued, short_conv(x[:, 3:], weight)[:, 2:])


def test_valid_tokens_come_first_in_their_order_and_go_back() -> None:
    valid = torch.tensor([[False, True, False, True, True], [True, True, True, True, True], [False] * 5])
    x, places = torch.arange(15.0).view(3, 5, 1), compact(valid)
    assert places.lengths.tolist() == [3, 5, 0]
    assert take(x, places.order)[0, :3, 0].tolist() == [1, 3, 4]
    torch.testing.assert_close(take(take(x, places.order), places.back), x)
