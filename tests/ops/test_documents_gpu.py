"""The operator of packed documents without a GPU: who sees whom, shapes and graphs of tensors without values."""

from itertools import product

import pytest
import torch
from torch import Tensor

from anyformer.core import DocumentBounds
from anyformer.core.masks import Band
from anyformer.data.batching.batch import bounds_of
from anyformer.ops.attention.packed import attend_packed, attend_rows, first_and_last, fits_kernel

SEGMENTS = torch.tensor([[0, 0, 1, 1, 1, -1], [0, 0, 0, 0, 0, 0], [0, 1, 2, 2, -1, -1]])


def test_first_and_last_enclose_what_has_the_same_segment() -> None:
    first, last = first_and_last(DocumentBounds(bounds_of(SEGMENTS), 6), SEGMENTS.numel())
    assert first.dtype == last.dtype == torch.int32
    place, row = torch.arange(18), torch.arange(18) // 6
    inside = (first[:, None] <= place) & (place < last[:, None])
    where = SEGMENTS.flatten()
    assert inside.equal((where[:, None] == where) & (row[:, None] == row))


def test_empty_documents_are_nobodys() -> None:
    bounds = torch.tensor([0, 0, 2, 2, 2, 3, 3], dtype=torch.int32)
    first, last = first_and_last(DocumentBounds(bounds, 2), 3)
    assert first.tolist() == [0, 0, 2] and last.tolist() == [2, 2, 3]


def apart(heads: Tensor, groups: int, bounds: Tensor) -> Tensor:
    parts = heads.flatten(0, 1).split_with_sizes((4, groups, groups), dim=1)
    return attend_packed(parts, groups, Band(255, 0), 0.3, DocumentBounds(bounds, heads.shape[1]))


def whole(heads: Tensor, groups: int, bounds: Tensor) -> Tensor:
    return attend_rows((heads,), groups, Band(None, 0), 0.3).flatten(0, 1)


@pytest.mark.parametrize(
    ("run", "groups", "compiled"),
    [
        *product((apart, whole), (4, 2), (False,)),
        pytest.param(apart, 4, True, marks=pytest.mark.compile),
        pytest.param(whole, 2, True, marks=pytest.mark.compile),
        pytest.param(apart, 2, True, marks=[pytest.mark.compile, pytest.mark.slow]),
        pytest.param(whole, 4, True, marks=[pytest.mark.compile, pytest.mark.slow]),
    ],
)
def test_it_and_its_gradients_have_the_shapes_of_what_went_in(run, groups: int, compiled: bool) -> None:  # type: ignore[no-untyped-def]
    torch._dynamo.reset()
    form = torch.compile(run, fullgraph=True, backend="aot_eager") if compiled else run
    for length in (300, 410, 555):  # from the second on dynamo would like the length to be a symbol
        heads = torch.empty(2, length, 4 + 2 * groups, 16, device="meta", dtype=torch.bfloat16, requires_grad=True)
        y = form(heads, groups, torch.empty(64, dtype=torch.int32, device="meta"))
        assert y.shape == (2 * length, 4, 16) and y.dtype == torch.bfloat16
        assert torch.autograd.grad(y, heads, torch.empty_like(y))[0].shape == heads.shape


def test_without_a_gpu_nothing_fits() -> None:
    q = torch.randn(300, 4, 64, dtype=torch.bfloat16)
    assert not fits_kernel(q, q, q, 0.3)
