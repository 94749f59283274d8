"""Norms against torch's own, and what tells them apart."""

from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from anyformer.core import Frame, Norm, NormSpec, Site, initialise
from anyformer.models import Block, Branch, Decoder, Stack
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.inits.xavier import Xavier
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.norms.batch import BatchNorm
from anyformer.parts.norms.layer import LayerNorm
from anyformer.parts.norms.rms import RMSNorm
from anyformer.parts.norms.scale import ScaleNorm

DIM = 32


def built(spec: NormSpec, learned: bool = True) -> Norm:
    """With random gains and biases, so that they are seen to act."""
    norm = spec.build(Site(dim=DIM))
    initialise(norm, NormalInit(), 0)
    for parameter in norm.parameters() if learned else ():
        parameter.data.add_(torch.randn_like(parameter))
    return norm


def tokens() -> torch.Tensor:
    return 3 * torch.randn(4, 7, DIM) + 1


@pytest.mark.row("TRF-08", clause=("standard: gamma (x - mu) / sqrt(sigma^2 + eps) + beta", "equals nn.LayerNorm"))
@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm_is_torchs(bias: bool) -> None:
    norm, x = built(LayerNorm(bias=bias)), tokens()
    theirs = nn.LayerNorm(DIM, bias=bias)
    theirs.weight.data = norm.gain.data
    if bias:
        theirs.bias.data = norm.bias.data
    torch.testing.assert_close(norm(x, Frame()), theirs(x))


@pytest.mark.row("TRF-08", clause="the normalised output has mean 0 and standard deviation 1")
@pytest.mark.parametrize("place", ["variance", "deviation"])
def test_layer_norm_gives_mean_zero_and_deviation_one(place: str) -> None:
    y = built(LayerNorm(eps_in=place), learned=False)(tokens(), Frame())
    torch.testing.assert_close(y.mean(-1), torch.zeros(4, 7), atol=1e-6, rtol=0)
    torch.testing.assert_close(y.std(-1, unbiased=False), torch.ones(4, 7), atol=1e-4, rtol=0)


@pytest.mark.row("TRF-08", clause="mu = mean(a), sigma = sqrt(mean((a - mu)^2)) over the features")
def test_the_lectures_layer_norm_divides_by_the_deviation_plus_eps() -> None:
    norm, x = built(LayerNorm(eps=0.1, eps_in="deviation")), tokens()
    mean, deviation = x.mean(-1, keepdim=True), x.std(-1, unbiased=False, keepdim=True)
    torch.testing.assert_close(norm(x, Frame()), (x - mean) / (deviation + 0.1) * norm.gain + norm.bias)


@pytest.mark.row("TRF-08", clause="eps_mode='std': (x - mu) / (sigma + eps), without gain and bias")
def test_the_lectures_layer_norm_learns_nothing() -> None:
    norm, x = LayerNorm(eps=0.1, eps_in="deviation", gain=False, bias=False).build(Site(dim=DIM)), tokens()
    expected = [[(a - a.mean()) / ((a - a.mean()).square().mean().sqrt() + 0.1) for a in text] for text in x]
    torch.testing.assert_close(norm(x, Frame()), torch.stack([torch.stack(text) for text in expected]))
    assert not list(norm.parameters())


@pytest.mark.parametrize("gain", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_gain_and_bias_of_layer_norm_can_each_be_left_out(gain: bool, bias: bool) -> None:
    norm, x = built(LayerNorm(gain=gain, bias=bias)), tokens()
    y = nn.LayerNorm(DIM, elementwise_affine=False)(x)
    y = y * norm.gain if gain else y
    torch.testing.assert_close(norm(x, Frame()), y + norm.bias if bias else y)
    assert len(list(norm.parameters())) == gain + bias


@pytest.mark.row("TRF-08", clause="the two eps modes differ only by O(eps)")
def test_the_two_places_of_eps_differ_by_the_order_of_eps() -> None:
    x = tokens().double()

    def gap(eps: float) -> float:
        inside, outside = (built(LayerNorm(eps=eps, eps_in=p), False).double() for p in ("variance", "deviation"))
        return (inside(x, Frame()) - outside(x, Frame())).abs().max().item()

    assert 0 < gap(1e-4) < 3e-4
    assert gap(1e-4) / gap(1e-6) == pytest.approx(100, rel=0.01)


def top_gradient(place: Literal["pre", "post"], depth: int) -> float:
    """The norm of the first gradient of the last feed-forward net; no update was made, so no warm-up has helped."""
    parts = (Attention(heads=4), MLP())
    layer = Block(branches=tuple(Branch(part=part, place=place, norm=LayerNorm()) for part in parts))
    end = LayerNorm() if place == "pre" else None
    stack = Stack(blocks={"layer": layer}, depth=depth)
    model: Any = Decoder(vocab=50, dim=64, stack=stack, exit_norm=end, init=Xavier()).build(seed=0)
    words = torch.randint(50, (8, 32), generator=torch.Generator().manual_seed(0))
    F.cross_entropy(model(words[:, :-1], Frame()).y.flatten(0, 1), words[:, 1:].flatten()).backward()
    return float(model.stack.calls()[-1].branches[1].part.down.weight.grad.norm())


@pytest.mark.row("TRF-10", clause="12+ layers post, no warm-up: diverges or larger top-layer gradients")
def test_norms_behind_give_deep_stacks_larger_first_gradients_at_the_top() -> None:
    pre, post = ([top_gradient(place, depth) for depth in (2, 12, 24)] for place in ("pre", "post"))
    assert post[1] > 1.5 * pre[1] and post[2] > 3 * pre[2]
    assert pre[2] < 0.5 * pre[0] and post[2] > 0.5 * post[0]  # only before the part they shrink with the depth


def both_batch_norms() -> tuple[Norm, nn.BatchNorm1d]:
    norm, theirs = built(BatchNorm()), nn.BatchNorm1d(DIM)
    theirs.weight.data, theirs.bias.data = norm.gain.data, norm.bias.data
    return norm, theirs


@pytest.mark.row(
    "TRF-09",
    clause=("normalises each feature over the batch (and time)", "keeps running statistics", "equals nn.BatchNorm1d"),
)
def test_batch_norm_is_torchs_in_training_and_evaluation() -> None:
    norm, theirs = both_batch_norms()
    for x in (tokens(), tokens()):
        torch.testing.assert_close(norm(x, Frame()), theirs(x.transpose(1, 2)).transpose(1, 2))
    torch.testing.assert_close(norm.mean, theirs.running_mean)
    torch.testing.assert_close(norm.variance, theirs.running_var)
    x = tokens()
    torch.testing.assert_close(norm.eval()(x, Frame()), theirs.eval()(x.transpose(1, 2)).transpose(1, 2))


@pytest.mark.row("TRF-09", clause="equals nn.BatchNorm1d")
def test_batch_norm_has_torchs_gradients() -> None:
    norm, theirs = both_batch_norms()
    x, weight = tokens().requires_grad_(), torch.randn(4, 7, DIM)
    (mine,) = torch.autograd.grad((norm(x, Frame()) * weight).sum(), x)
    (others,) = torch.autograd.grad((theirs(x.flatten(0, 1)).view_as(x) * weight).sum(), x)
    torch.testing.assert_close(mine, others)


@pytest.mark.row("TRF-09")
def test_batch_norm_does_not_look_at_padding() -> None:
    norm, theirs = both_batch_norms()
    valid = torch.arange(7) < torch.tensor([7, 3, 5, 1])[:, None]
    x = tokens().masked_fill(~valid[..., None], 100.0)
    torch.testing.assert_close(norm(x, Frame(valid=valid))[valid], theirs(x[valid]))
    torch.testing.assert_close(norm.variance, theirs.running_var)


@pytest.mark.row(
    "TRF-09",
    clause=(
        "layer norm of a sample does not depend on the rest of the batch",
        "batch norm of a sample does depend on the rest of the batch",
        "layer norm gives the same in training and evaluation",
        "batch norm differs between training and evaluation",
    ),
)
@pytest.mark.parametrize(("spec", "independent"), [(LayerNorm(), True), (BatchNorm(), False)])
def test_only_batch_norm_depends_on_the_batch_and_on_training(spec: NormSpec, independent: bool) -> None:
    norm, x = built(spec), tokens()
    alone, together = norm(x[:1], Frame())[0], norm(x, Frame())[0]
    assert torch.allclose(alone, together, atol=1e-5) is independent
    assert torch.allclose(together, norm.eval()(x, Frame())[0], atol=1e-5) is independent
    torch.testing.assert_close(norm(x[:1], Frame())[0], norm(x, Frame())[0])  # in evaluation neither does


@pytest.mark.row(
    "NAR-13",
    clause=(
        "x rsqrt(mean(x^2) + 1e-6) g",
        "partial variant: the RMS is taken from the first 6.75 % of dimensions",
        "partial variant at 100 % equals the full norm",
    ),
)
@pytest.mark.parametrize(("part", "first"), [(0.0675, 3), (0.25, 8), (1.0, 32)])
def test_a_partial_rms_norm_measures_the_first_dimensions(part: float, first: int) -> None:
    norm, x = built(RMSNorm(part=part)), tokens()
    expected = x / (x[..., :first].square().mean(-1, keepdim=True) + 1e-6).sqrt() * norm.gain
    torch.testing.assert_close(norm(x, Frame()), expected)


def test_scale_norm_gives_every_token_its_learned_length() -> None:
    norm, x = built(ScaleNorm(), learned=False), tokens()
    torch.testing.assert_close(norm(x, Frame()), built(RMSNorm(eps=1e-12), learned=False)(x, Frame()))
    norm.length.data.fill_(2.0)
    torch.testing.assert_close(norm(x, Frame()), 2 * x / x.norm(dim=-1, keepdim=True))
    assert norm(torch.zeros(1, 1, DIM), Frame()).abs().max() == 0
