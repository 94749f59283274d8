"""Weights by columns."""

import torch
from tests.generation.small import writer

from anyformer.core import Frame
from anyformer.generation.layout import by_columns


def test_only_the_strides_change() -> None:
    plain, laid = writer(), by_columns(writer())
    for mine, other in zip(plain.state_dict().values(), laid.state_dict().values(), strict=True):
        assert mine.equal(other)
    matrix = laid.get_parameter("stack.layers.0.branches.1.part.down.weight")
    assert matrix.t().is_contiguous() and not matrix.is_contiguous()
    tokens = torch.tensor([[3, 1, 4]])
    torch.testing.assert_close(laid(tokens, Frame()).y, plain(tokens, Frame()).y)
