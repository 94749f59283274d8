"""Linear attention: its equation, the same as a recurrence, and in both directions."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core import Frame, Site, capture, initialise
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.mixers.linear_attention import LinearAttention, LinearAttentionPart

DIM, HEADS, T = 8, 2, 70


def built(causal: bool = True) -> LinearAttentionPart:
    part = LinearAttention(heads=HEADS).build(Site(dim=DIM, causal=causal))
    initialise(part, NormalInit(deviation=0.4), seed=0)
    return part


def by_pairs(part: LinearAttentionPart, x: Tensor, seen: Tensor) -> Tensor:
    """As the equation says: every pair of tokens that may meet, and a sum of weights to divide by."""
    q, k, v = part.qkv(x).unflatten(-1, (3 * HEADS, -1)).chunk(3, dim=2)
    scores = torch.einsum("bihc,bjhc->bhij", F.elu(q) + 1, F.elu(k) + 1) * seen
    y = torch.einsum("bhij,bjhc->bihc", scores / scores.sum(-1, keepdim=True), v)
    return part.out(y.flatten(2))


@pytest.mark.row("XF-10", clause="linear attention: phi(Q) (phi(K)^T V) / (phi(Q) sum phi(K))")
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both ways"])
def test_it_is_attention_with_a_product_of_features(causal: bool) -> None:
    part, x, seen = built(causal), torch.randn(2, T, DIM), torch.ones(T, T)
    expected = by_pairs(part, x, seen.tril() if causal else seen)
    torch.testing.assert_close(part(x, Frame()).y, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.row("XF-10", clause="linear attention: the parallel form equals the recurrent form")
def test_token_by_token_it_is_the_same_with_a_state_that_does_not_grow() -> None:
    part, x, pieces = built(), torch.randn(2, T, DIM), []
    state = part.init_state(2, T)
    size = state.shape
    for at in range(T):
        out = part(x[:, at : at + 1], Frame(positions=torch.full((2, 1), at)), state)
        state, pieces = out.state, [*pieces, out.y]
        assert state.shape == size
    torch.testing.assert_close(torch.cat(pieces, dim=1), part(x, Frame()).y, atol=1e-5, rtol=1e-4)


def test_packed_documents_read_both_ways_see_only_themselves() -> None:
    part, x = built(causal=False), torch.randn(1, 12, DIM)
    segments = torch.tensor([[0] * 5 + [1] * 7])
    alone = torch.cat([part(piece, Frame()).y for piece in x.split([5, 7], dim=1)], dim=1)
    torch.testing.assert_close(part(x, Frame(segments=segments)).y, alone, atol=1e-5, rtol=1e-4)


def test_the_divisor_can_be_seen_and_grows() -> None:
    part = built()
    with capture(part, "divisor") as seen:
        part(torch.randn(1, 5, DIM), Frame())
    assert (seen["divisor"][0].diff(dim=1).shape == (1, 4, HEADS, 1)) and (seen["divisor"][0] > 0).all()
