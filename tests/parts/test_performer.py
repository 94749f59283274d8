"""Performer: its equation, an unbiased estimate of the softmax whose error falls with the square root of m."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core import Frame, Site, Work, capture, cost, initialise
from anyformer.models import Block, Branch, Decoder, Stack
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.mixers.performer import Performer, PerformerPart, orthogonal_directions

DIM, HEADS, T = 8, 2, 70
FAVOR = "Performer: softmax approximated by positive random features (FAVOR+)"


def built(features: int = 12, causal: bool = True, seed: int = 0) -> PerformerPart:
    part = Performer(heads=HEADS, features=features).build(Site(dim=DIM, causal=causal))
    initialise(part, NormalInit(deviation=0.4), seed)
    return part


def heads(part: PerformerPart, x: Tensor) -> list[Tensor]:
    """Queries and keys divided by c^(1/4), and values: [b t h c]."""
    q, k, v = part.qkv(x).unflatten(-1, (3, HEADS, -1)).unbind(2)
    return [q / q.shape[-1] ** 0.25, k / k.shape[-1] ** 0.25, v]


def by_pairs(part: PerformerPart, x: Tensor) -> Tensor:
    """The equation, one query after the other: features of one vector at a time, and a quotient of two sums."""
    q, k, v = heads(part, x)
    y = torch.zeros_like(v)
    for b in range(x.shape[0]):
        for h in range(HEADS):
            w = part.directions[h]
            features = [[(w @ z - z @ z / 2).exp() / math.sqrt(len(w)) for z in xs[b, :, h]] for xs in (q, k)]
            for i in range(x.shape[1]):
                seen = range(i + 1) if part.causal else range(x.shape[1])
                kernel = torch.stack([features[0][i] @ features[1][j] for j in seen])
                y[b, i, h] = (kernel[:, None] * v[b, list(seen), h]).sum(0) / kernel.sum()
    return part.out(y.flatten(2))


@pytest.mark.row("XF-10", clause=FAVOR)
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both ways"])
def test_it_is_its_equation_with_its_gradients(causal: bool) -> None:
    part, x = built(causal=causal), torch.randn(2, 6, DIM, requires_grad=True)
    loop, y = by_pairs(part, x), part(x, Frame()).y
    torch.testing.assert_close(y, loop, atol=1e-5, rtol=1e-4)
    leaves = (x, part.qkv.weight, part.out.weight)
    wanted, grads = (torch.autograd.grad(z.square().sum(), leaves) for z in (loop, y))
    torch.testing.assert_close(grads, wanted, atol=1e-4, rtol=1e-3)


@pytest.mark.row("XF-10", clause=FAVOR)
def test_the_product_of_features_is_unbiased() -> None:
    """Over 16384 draws of 8 orthogonal directions the mean is within 4 standard errors of exp(q . k), and the standard
    error is below 1%."""
    rng = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 4, generator=rng, dtype=torch.float64) / 2
    draws = orthogonal_directions(16_384, 8, 4, rng).double()
    products = (draws @ q - q @ q / 2).exp() * (draws @ k - k @ k / 2).exp()
    estimates = products.mean(1)
    error = (estimates.std() / math.sqrt(len(estimates))).item()
    exact = (q @ k).exp().item()
    assert abs(estimates.mean().item() - exact) < 4 * error < 0.04 * exact


@pytest.mark.row("XF-10", clause="Performer: the error to exact softmax falls as 1/sqrt(m)")
@torch.no_grad()
def test_the_error_to_softmax_falls_with_the_root_of_the_features() -> None:
    """The exponent of a fit over m = 16, 32, .., 1024, with 16 draws of each, for tokens of moderate length: the
    variance grows with exp(|q + k|^2), and few draws do not show the mean of so long a tail."""
    sizes, errors = [2**power for power in range(4, 11)], []
    x = 0.2 * torch.randn(1, 32, DIM, generator=torch.Generator().manual_seed(1))
    first = built()
    q, k, v = (z.transpose(1, 2) for z in heads(first, x))
    exact = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
    exact = first.out(exact.transpose(1, 2).flatten(2))
    for features in sizes:
        squares = []
        for draw in range(16):
            part = built(features, seed=draw)
            part.qkv, part.out = first.qkv, first.out
            squares.append((part(x, Frame()).y - exact).square().mean())
        errors.append(torch.stack(squares).mean().sqrt().log().item())
    both = torch.stack((torch.tensor(sizes).log(), torch.tensor(errors))).cov()
    slope = (both[0, 1] / both[0, 0]).item()
    assert slope == pytest.approx(-0.5, abs=0.1)


def test_directions_come_from_the_seed_and_are_orthogonal() -> None:
    one, same, other = built(seed=3).directions, built(seed=3).directions, built(seed=4).directions
    assert torch.equal(one, same) and not torch.equal(one, other) and not torch.equal(one[0], one[1])
    products = one[:, :4] @ one[:, :4].mT
    assert (products - products.diagonal(dim1=-2, dim2=-1).diag_embed()).abs().max() < 1e-5
    assert "directions" in built().state_dict()  # a loaded model has the features that it was trained with


def test_long_keys_neither_overflow_nor_divide_by_zero() -> None:
    part = built()
    x = (100 * torch.randn(1, 20, DIM)).requires_grad_()
    y = part(x, Frame()).y
    y.sum().backward()
    assert y.isfinite().all() and x.grad is not None and x.grad.isfinite().all()


def test_token_by_token_it_is_the_same_with_a_state_that_does_not_grow() -> None:
    part, x, pieces = built(), torch.randn(2, T, DIM), []
    state = part.init_state(2, T)
    assert state.shape == (2, HEADS, 12, 1, DIM // HEADS + 1)
    for at in range(T):
        out = part(x[:, at : at + 1], Frame(positions=torch.full((2, 1), at)), state)
        assert out.state.shape == state.shape
        state, pieces = out.state, [*pieces, out.y]
    torch.testing.assert_close(torch.cat(pieces, dim=1), part(x, Frame()).y, atol=1e-5, rtol=1e-4)


def test_packed_documents_read_both_ways_see_only_themselves() -> None:
    part, x = built(causal=False), torch.randn(1, 12, DIM)
    segments = torch.tensor([[0] * 5 + [1] * 7])
    alone = torch.cat([part(piece, Frame()).y for piece in x.split([5, 7], dim=1)], dim=1)
    torch.testing.assert_close(part(x, Frame(segments=segments)).y, alone, atol=1e-5, rtol=1e-4)


def test_the_divisor_can_be_seen() -> None:
    part = built()
    with capture(part, "divisor") as seen:
        part(torch.randn(1, 5, DIM), Frame())
    assert (seen["divisor"][0] > 0).all()


def test_the_cost_is_linear_in_the_length() -> None:
    block = Block(branches=(Branch(part=Performer(heads=HEADS, features=16)),))
    spec = Decoder(vocab=16, dim=DIM, max_len=4096, stack=Stack(blocks={"layer": block}, depth=1))
    short, long = (cost(spec, Work(batch=1, length=length)).total for length in (1024, 4096))
    assert long.flops_forward == pytest.approx(4 * short.flops_forward, rel=0.02)
    assert long.state_bytes == short.state_bytes
