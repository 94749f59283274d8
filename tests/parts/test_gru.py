"""The gated recurrent unit: its equation, its size, and padding inside of packed rows."""

import pytest
import torch

from anyformer.core import Frame, Site, initialise
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.mixers.gru import GRU, GRUPart

DIM = 6


def built(hidden: int | None = None) -> GRUPart:
    part = GRU(hidden=hidden).build(Site(dim=DIM))
    initialise(part, NormalInit(deviation=0.4), seed=0)
    for bias in (part.input_bias, part.recurrent_bias):
        assert bias is not None
        torch.nn.init.normal_(bias)
    return part


@pytest.mark.row(
    "RNN-06",
    clause=(
        "gates z and r are sigmoids of maps of [x_t; h_(t-1)]",
        "n = tanh(W_n x + b + r (U_n h + b')): reset applied after U_n",
        "h_t = (1 - z) n + z h_(t-1)",
    ),
)
def test_it_is_its_equation_with_the_reset_after_the_product() -> None:
    part, x, h = built(), torch.randn(2, 5, DIM), torch.zeros(2, DIM)
    y = part(x, Frame()).y
    (wr, wz, wn), (ur, uz, un) = part.input.chunk(3), part.recurrent.chunk(3)
    assert part.input_bias is not None and part.recurrent_bias is not None
    (br, bz, bn), (cr, cz, cn) = part.input_bias.chunk(3), part.recurrent_bias.chunk(3)
    for t in range(5):
        r = torch.sigmoid(x[:, t] @ wr.T + br + h @ ur.T + cr)
        z = torch.sigmoid(x[:, t] @ wz.T + bz + h @ uz.T + cz)
        n = torch.tanh(x[:, t] @ wn.T + bn + r * (h @ un.T + cn))
        h = (1 - z) * n + z * h
        torch.testing.assert_close(y[:, t], h, atol=1e-6, rtol=1e-5)


@pytest.mark.row("RNN-06")
def test_weights_are_counted() -> None:
    count = sum(parameter.numel() for parameter in built(hidden=10).parameters())
    assert count == 3 * (DIM * 10 + 10**2 + 2 * 10) + 10 * DIM


def test_documents_of_a_padded_row_are_read_alone() -> None:
    part, x = built(), torch.randn(1, 9, DIM)
    valid = torch.tensor([[1, 1, 0, 1, 0, 1, 1, 1, 0]]).bool()
    frame = Frame(positions=torch.tensor([[0, 1, 0, 2, 0, 0, 1, 2, 0]]), valid=valid)
    y = part(x, frame).y
    first, second = part(x[:, [0, 1, 3]], Frame()).y, part(x[:, 5:8], Frame()).y
    torch.testing.assert_close(y[valid][None], torch.cat((first, second), dim=1))
    assert not y[~valid].any()
