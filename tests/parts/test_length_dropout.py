"""Dropout with one mask for all tokens of a row."""

import pytest
import torch
from torch import Tensor

from anyformer.core import Frame, Site, initialise
from anyformer.parts.channels.length_dropout import LengthDropout
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.combine.chain import Chain, ChainStep
from anyformer.parts.inits.xavier import Xavier

row = pytest.mark.row("TRF-20", clause="optionally one mask is broadcast over the length, as in T5")
DIM, CHANCE = 16, 0.3
CHAIN = Chain(steps=(ChainStep(part=MLP()), ChainStep(part=LengthDropout(chance=CHANCE))))


def dropped(rows: int) -> tuple[Tensor, Tensor]:
    """The output of a net in training and in evaluation [b t d]."""
    part = CHAIN.build(Site(dim=DIM))
    initialise(part, Xavier(), 0)
    x = torch.randn(rows, 7, DIM)
    with torch.no_grad():
        return part.train()(x, Frame()).y, part.eval()(x, Frame()).y


@row
def test_a_channel_is_dropped_at_every_position_of_a_row_or_at_none() -> None:
    y, exact = dropped(rows=400)
    gone = y == 0
    assert torch.equal(gone, gone[:, :1].expand_as(gone)), "one mask for all positions"
    torch.testing.assert_close(y, torch.where(gone, 0.0, exact / (1 - CHANCE)))
    shares = gone[:, 0].float()
    assert shares.unique(dim=0).shape[0] > 300, "rows have masks of their own"
    assert (shares.mean() - CHANCE).abs() < 5 * (CHANCE * (1 - CHANCE) / shares.numel()) ** 0.5


@row
def test_the_mean_is_kept_and_evaluation_is_the_identity() -> None:
    part, x = LengthDropout(chance=CHANCE).build(Site(dim=DIM)), torch.randn(1, 7, DIM)
    assert torch.equal(part.eval()(x, Frame()).y, x)
    samples = part.train()(x.expand(4000, -1, -1), Frame()).y
    assert ((samples.mean(0) - x[0]).abs() < 5 * samples.std(0) / 4000**0.5).all()
