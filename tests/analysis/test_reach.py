"""What reaches what: nothing from the future, a convolution as far as its kernel, and shares that add up to one."""

import pytest
import torch
from tests.viewing.small import built, decoder, pair

from anyformer.analysis.influence import from_farther, reach
from anyformer.parts.mixers.conv import Conv
from anyformer.parts.mixers.gru import GRU

TOKENS = list(range(9))


@pytest.mark.row(
    "CLM-32",
    clause=(
        "a causal state at t summarises x_1..x_t, a full one x_1..x_T",
        "gradients of a causal state at t reach inputs 1..t and no later one",
    ),
)
def test_a_token_depends_on_those_before_it_and_the_shares_add_up() -> None:
    shares = reach(built(decoder(GRU())), TOKENS)
    assert shares.triu(1).max() == 0 and (shares.tril() > 0).sum() == 45
    torch.testing.assert_close(shares.sum(-1), torch.ones(9))


@pytest.mark.row("CLM-09", clause="breadth-first search finds ceil((T-1)/(k-1)) for convolution")
def test_a_convolution_reaches_as_far_as_its_kernels() -> None:
    shares = reach(built(decoder(Conv(kernel=3), depth=2)), TOKENS)
    far = from_farther(shares)
    assert far[3] > 0 and far[4:] == [0.0] * 5
    assert far == sorted(far, reverse=True)


@pytest.mark.row("PRE-23", clause="encoder Jacobian is dense: context from both sides")
@pytest.mark.row("CLM-24", clause="unmasked y_t is a function of all of x_1..x_T")
@pytest.mark.row(
    "CLM-32",
    clause=(
        "a causal state at t summarises x_1..x_t, a full one x_1..x_T",
        "gradients of a bidirectional output at t reach every input",
    ),
)
def test_of_a_pair_the_encoder_is_shown_which_sees_both_ways() -> None:
    shares = reach(built(pair()), TOKENS)
    assert shares.shape == (9, 9) and shares.min() > 0
    assert from_farther(shares)[0] == pytest.approx(float(1 - shares.diagonal().mean()), abs=1e-6)
