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


@pytest.mark.row(
    "ATT-05",
    clause=(
        "Z = [head_1 .. head_H] W_o",
        "output equals nn.MultiheadAttention with copied weights",
        "attention weights equal those of nn.MultiheadAttention",
    ),
)
@pytest.mark.row(
    "ATT-07", clause=("queries, keys and values all come from one sequence", "nothing is masked but padding")
)
@pytest.mark.row("ATT-08", clause="score q_i . k_j / sqrt(d_k) for j <= i, -inf for j > i")
@pytest.mark.row("ATT-11", clause="the scores of pad keys get -inf added")
@pytest.mark.row("POS-07", clause="score q_i . (k_j + a^K[clip(j-i, -k, k)]) / sqrt(head width)")
@pytest.mark.row("TRF-19", clause="query, key and value projections are d x d each: O(d^2)")
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


@pytest.mark.row(
    "ATT-10",
    clause=("equals nn.MultiheadAttention(q, k, v)", "the score matrix is target x source, also for unequal lengths"),
)
@pytest.mark.row("ATT-14", clause="Q is T x D, K and V are S x D: a T x S score matrix for each head")
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


@pytest.mark.row("ATT-05", clause="4 d^2 parameters, 4 d more with biases")
def test_attention_has_four_square_matrices_and_their_biases() -> None:
    plain, biased = (Attention(heads=HEADS, bias=bias).build(Site(dim=DIM)) for bias in (False, True))
    assert sum(p.numel() for p in plain.parameters()) == 4 * DIM**2
    assert sum(p.numel() for p in biased.parameters()) == 4 * DIM**2 + 4 * DIM
