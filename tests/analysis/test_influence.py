"""Influence is the norm of a Jacobian's blocks; entropy and distance are what they are said to be."""

import math

import pytest
import torch
from tests.viewing.small import DIM

from anyformer.analysis.influence import distance, entropy, influence, mixes
from anyformer.core import Frame, Site
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.mixers.gru import GRU

SITE = Site(dim=DIM)


def part(spec):
    built = spec.build(SITE)
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return lambda x: built(x, Frame()).y


def jacobian_norms(function, x):
    blocks = torch.autograd.functional.jacobian(lambda row: function(row[None])[0], x[0])  # [t d s d]
    return blocks.square().sum((1, 3)).sqrt()


def test_with_all_directions_it_is_the_norm_of_the_jacobian() -> None:
    function, x = part(GRU()), torch.randn(1, 7, DIM)
    found = influence(function, x)
    assert found.exact
    torch.testing.assert_close(found.norms, jacobian_norms(function, x), rtol=1e-4, atol=1e-6)


def test_with_few_directions_it_is_near_and_zero_where_nothing_flows() -> None:
    function, x = part(GRU()), torch.randn(1, 7, DIM)
    found, exact = influence(function, x, work=8 * 49), jacobian_norms(function, x)
    assert found.directions == 8 and not found.exact
    assert (found.norms - exact).norm() < 0.25 * exact.norm()
    assert not found.norms.triu(1).any()  # a recurrent part does not see the future


def test_who_mixes_is_told_from_who_does_not() -> None:
    x = torch.randn(1, 5, DIM)
    assert mixes(part(GRU()), x)
    assert mixes(lambda x: x.flip(1).cumsum(1).flip(1), x)  # from the end alone
    assert not mixes(part(MLP()), x)


@pytest.mark.row(
    "VIZ-12",
    clause=(
        "entropy of the attention is computed per head",
        "mean attention distance is computed per head",
        "uniform attention over N tokens has entropy log N",
        "diagonal attention has entropy 0 and distance 0",
    ),
)
def test_even_weights_have_entropy_log_n_and_the_diagonal_has_neither_entropy_nor_distance() -> None:
    even, diagonal = torch.full((2, 8, 8), 1 / 8), torch.eye(8).expand(2, 8, 8)
    torch.testing.assert_close(entropy(even), torch.full((2,), math.log(8)))
    assert not entropy(diagonal).any() and not distance(diagonal).any()
    next_one = torch.eye(8).roll(3, 1)[:5, :]
    torch.testing.assert_close(distance(torch.cat((next_one, torch.zeros(3, 8)))), torch.tensor(3 * 5 / 8))
