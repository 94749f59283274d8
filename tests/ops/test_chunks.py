"""Cutting sequences into chunks."""

import pytest
import torch

from anyformer.ops.padding import cut


@pytest.mark.parametrize("shape", [(2, 7), (2, 7, 3), (2, 7, 3, 2)], ids=str)
def test_chunks_in_a_row_are_the_sequence_and_zeros(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    behind, before = cut(x, 4), cut(x, 4, pad_front=True)
    assert behind.shape == before.shape == (2, 2, 4, *shape[2:])
    assert torch.equal(behind.flatten(1, 2)[:, :7], x) and not behind.flatten(1, 2)[:, 7:].any()
    assert torch.equal(before.flatten(1, 2)[:, 1:], x) and not before.flatten(1, 2)[:, :1].any()


def test_what_fits_is_not_copied() -> None:
    x = torch.randn(2, 8, 3)
    assert cut(x, 4).data_ptr() == x.data_ptr()
