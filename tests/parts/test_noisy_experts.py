"""Noisy top-k gating: the noise, and the losses of importance and load as their paper defines them."""

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from tests.checking import unchecked
from tests.parts.mixtures import EXPERTS, LENGTH, ROWS, balance, built, seen, tokens
from torch import Tensor

from anyformer.core import Frame


@pytest.mark.row(
    "WMT-05",
    clause=(
        "gate logits are x W_g plus normal noise times softplus(x W_n)",
        "gates are the softmax over the k largest logits, others zero",
    ),
)
def test_noise_is_normal_unbiased_and_as_large_as_learned() -> None:
    count = 40_000
    part, x = built(experts=2, gating="noisy"), tokens(1, 1)
    torch.manual_seed(0)
    taps = seen(part.train(), x.expand(1, count, -1))
    gates = taps["gates"].gather(-1, taps["choices"].argsort(-1))  # in order of the experts
    difference = gates[..., 0].logit()  # of the two logits
    clean, spread = F.linear(x, part.router.detach())[0, 0].chunk(2)
    size = F.softplus(spread).square().sum().sqrt()
    z = (difference - (clean[0] - clean[1])) / size
    assert z.mean().abs() < 5 / count**0.5 and (z.std() - 1).abs() < 5 / (2 * count) ** 0.5
    assert (z.pow(4).mean() - 3).abs() < 5 * (96 / count) ** 0.5
    exact = seen(part.eval(), x)
    torch.testing.assert_close(exact["gates"][0, 0], clean.sort(descending=True).values.softmax(-1))


def slow_chance(clean: Tensor, noisy: Tensor, spread: Tensor, k: int, index: int) -> float:
    """The probability that an expert is among the k largest logits of a token if its own noise is drawn again."""
    threshold = sorted((float(noisy[j]) for j in range(len(noisy)) if j != index), reverse=True)[k - 1]
    return float(torch.distributions.Normal(0.0, 1.0).cdf((clean[index] - threshold) / spread[index]))


@pytest.mark.row(
    "WMT-05",
    clause=(
        "importance loss is w times CV^2 of the summed gates",
        "a load loss is added beside the importance loss",
    ),
)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_importance_and_load_are_as_their_paper_defines_them(k: int) -> None:
    part, x = built(top_k=k, gating="noisy", balance=0.1).train(), tokens()
    torch.manual_seed(0)
    loss = part(x, Frame()).losses["balance"]
    torch.manual_seed(0)
    clean, spread = F.linear(x, part.router.detach()).flatten(0, 1).chunk(2, dim=-1)
    spread = F.softplus(spread)
    noisy = clean + torch.randn_like(clean.unflatten(0, (ROWS, LENGTH))).flatten(0, 1) * spread
    importance, load = torch.zeros(EXPERTS).double(), torch.zeros(EXPERTS).double()
    for token in range(len(noisy)):
        best = noisy[token].argsort(descending=True)[:k]
        importance[best] += noisy[token][best].softmax(0) if k > 1 else noisy[token].softmax(0)[best]
        load += torch.tensor([slow_chance(clean[token], noisy[token], spread[token], k, i) for i in range(EXPERTS)])
    variations = [sums.var(correction=0) / sums.mean() ** 2 for sums in (importance, load)]
    torch.testing.assert_close(loss, 0.1 * (variations[0] + variations[1]), atol=1e-6, rtol=1e-5)


@pytest.mark.row("WMT-05", clause="a load loss is added beside the importance loss")
def test_the_load_is_the_expected_number_of_tokens_of_an_expert() -> None:
    part, x, count = built(gating="noisy").train(), tokens(1, 1), 20_000
    torch.manual_seed(0)
    choices = seen(part, x.expand(1, count, -1))["choices"]
    share = F.one_hot(choices, EXPERTS).double().sum((0, 1, 2)) / count
    clean, spread = F.linear(x, part.router.detach())[0, 0].chunk(2)
    spread = F.softplus(spread)
    noisy = clean + torch.randn(200, EXPERTS).double() * spread
    expected = [sum(slow_chance(clean, row, spread, 2, i) for row in noisy) / len(noisy) for i in range(EXPERTS)]
    assert (share - torch.tensor(expected)).abs().max() < 5 * 0.5 / 200**0.5


@pytest.mark.row("WMT-05", clause="balance loss is 0 at uniform load")
def test_importance_and_load_losses_vanish_for_uniform_experts() -> None:
    part = built(dim=EXPERTS, gating="noisy", balance=1.0).train()
    part.router.data[:EXPERTS], part.router.data[EXPERTS:] = torch.eye(EXPERTS), -100.0  # almost no noise
    even = torch.stack([torch.tensor([3.0, 2.0, 1.0, 0.0]).roll(turn) for turn in range(EXPERTS)]).double()[None]
    skewed = torch.cat((even[:, :1], even[:, :1], even[:, :2]), dim=1)
    losses = [balance(part, x) for x in (even, skewed)]
    assert losses[0] == pytest.approx(0, abs=1e-9) and losses[1] > 0.1


def balance_after_training(weight: float) -> float:
    """CV of expert usage after 60 steps, from a router that prefers two of the experts."""
    part, x = built(gating="noisy", balance=weight).train(), tokens(8, 16, seed=3)
    x[..., 0] = 1.0
    part.router.data[:2, 0] += 3.0
    optimizer = torch.optim.Adam(part.parameters(), lr=2e-2)
    torch.manual_seed(0)
    for step in range(60):
        with unchecked() if step else nullcontext():
            out = part(x, Frame())
        optimizer.zero_grad()
        ((out.y - x.tanh()).square().mean() + out.losses.get("balance", torch.zeros(()))).backward()
        optimizer.step()
    usage = F.one_hot(seen(part.eval(), x)["choices"], EXPERTS).double().sum((0, 1, 2))
    return float(usage.std(correction=0) / usage.mean())


@pytest.mark.row("WMT-05", clause="the CV of expert usage falls when the balance loss is on")
def test_experts_are_used_more_evenly_with_the_balance_loss() -> None:
    without, with_loss = balance_after_training(0.0), balance_after_training(0.1)
    assert with_loss < 0.5 * without
