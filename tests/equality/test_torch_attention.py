"""Attention against torch.nn.MultiheadAttention with the same weights: output, pattern and gradients."""

from functools import partial

import pytest
import torch
from tests.equality.comparing import (
    check_equal,
    check_gradients,
    check_input_gradients,
    check_outputs,
    lengths_mask,
    randomise,
    twin,
)
from tests.equality.copying import copy, multihead
from torch import nn

from anyformer.core import Frame, Memory, Site, capture
from anyformer.parts.combine.cross import Cross
from anyformer.parts.mixers.attention import Attention

DIM, HEADS, T, S = 32, 4, 7, 9


@pytest.mark.row("ATT-05")
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_self_attention_equals_torch(causal: bool, padded: bool) -> None:
    peer = randomise(nn.MultiheadAttention(DIM, HEADS, batch_first=True))
    ours = Attention(heads=HEADS, bias=True).build(Site(dim=DIM, causal=causal)).eval()
    copy(peer, ours, multihead)
    valid = lengths_mask([T, 4]) if padded else torch.ones(2, T, dtype=torch.bool)
    x, y = twin((2, T, DIM))
    hidden = torch.ones(T, T, dtype=torch.bool).triu(1) if causal else None
    theirs, weights = peer(
        y, y, y, attn_mask=hidden, key_padding_mask=~valid if padded else None, average_attn_weights=False
    )
    with capture(ours, "*pattern") as seen:
        watched = ours(x, Frame(valid=valid if padded else None)).y
    check_equal(watched[valid], theirs[valid])
    check_equal(seen["pattern"][0].transpose(1, 2)[valid], weights.transpose(1, 2)[valid])  # by query
    check_outputs(ours(x, Frame(valid=valid if padded else None)).y[valid], theirs[valid])
    check_gradients(ours, peer, multihead)
    check_input_gradients(x, y)


@pytest.mark.row("ATT-10")
@pytest.mark.parametrize("padded", [False, True])
def test_cross_attention_equals_torch(padded: bool) -> None:
    peer, table = randomise(nn.MultiheadAttention(DIM, HEADS, batch_first=True)), partial(multihead, cross=True)
    ours = Cross(part=Attention(heads=HEADS, bias=True)).build(Site(dim=DIM)).eval()
    copy(peer, ours, table)
    (x, y), (source, encoded) = twin((2, T, DIM)), twin((2, S, DIM))
    valid = lengths_mask([S, 5]) if padded else None
    theirs, weights = peer(
        y, encoded, encoded, key_padding_mask=None if valid is None else ~valid, average_attn_weights=False
    )
    frame = Frame(memory=Memory(x=source, valid=valid))
    with capture(ours, "*pattern") as seen:
        check_equal(ours(x, frame).y, theirs)
    assert seen["pattern"][0].shape == (2, HEADS, T, S)
    check_equal(seen["pattern"][0], weights)
    check_outputs(ours(x, frame).y, theirs)
    check_gradients(ours, peer, table)
    check_input_gradients(x, y)
    check_input_gradients(source, encoded)


@pytest.mark.row("ATT-05")
def test_attention_has_four_square_matrices_and_their_biases() -> None:
    plain, biased = (Attention(heads=HEADS, bias=bias).build(Site(dim=DIM)) for bias in (False, True))
    assert sum(p.numel() for p in plain.parameters()) == 4 * DIM**2
    assert sum(p.numel() for p in biased.parameters()) == 4 * DIM**2 + 4 * DIM
