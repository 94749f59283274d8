"""The call of flash attention without a GPU: shapes, gradients and graphs of tensors without values; who gets it."""

from itertools import product

import pytest
import torch
from torch import Tensor

from anyformer.core import Causal, DocumentBounds, Marks, MaskRule
from anyformer.core.masks import Band
from anyformer.ops.attention.blocked import flash_band
from anyformer.ops.attention.call import AttentionCall
from anyformer.ops.attention.packed import prefers_band
from anyformer.parts.masks.window import Window


def inputs(groups: int, length: int = 300) -> list[Tensor]:
    kind = {"device": "meta", "dtype": torch.bfloat16, "requires_grad": True}
    return [torch.empty(2, length, heads, 16, **kind) for heads in (4, groups, groups)]


def rows(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, longest: int) -> Tensor:
    return flash_band(q, k, v, Band(255, 0), 0.3)


def packed(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, longest: int) -> Tensor:
    flat = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
    return flash_band(*flat, Band(255, 0), 0.3, DocumentBounds(bounds, longest)).view_as(q)


@pytest.mark.parametrize(
    ("run", "groups", "compiled"),
    [
        *product((rows, packed), (4, 2), (False,)),
        pytest.param(rows, 4, True, marks=pytest.mark.compile),
        pytest.param(packed, 2, True, marks=pytest.mark.compile),
        pytest.param(rows, 2, True, marks=[pytest.mark.compile, pytest.mark.slow]),
        pytest.param(packed, 4, True, marks=[pytest.mark.compile, pytest.mark.slow]),
    ],
)
def test_it_and_its_gradients_have_the_shapes_of_what_went_in(run, groups: int, compiled: bool) -> None:  # type: ignore[no-untyped-def]
    torch._dynamo.reset()
    form = torch.compile(run, fullgraph=True, backend="aot_eager") if compiled else run
    for length in (300, 410, 555):  # from the second on dynamo would like the length to be a symbol
        leaves = inputs(groups, length)
        y = form(*leaves, torch.empty(64, dtype=torch.int32, device="meta"), length)
        assert y.shape == leaves[0].shape and y.dtype == torch.bfloat16
        found = torch.autograd.grad(y, leaves, torch.empty_like(y))
        assert [x.shape for x in found] == [x.shape for x in leaves]


@pytest.mark.parametrize("rule", [Window(size=9), Window(size=9) & Causal()], ids=str)
def test_without_a_gpu_a_window_goes_another_way(rule: MaskRule) -> None:
    q, marks = torch.randn(1, 300, 4, 16, dtype=torch.bfloat16), Marks(torch.arange(300)[None])
    assert not prefers_band(q, q, q, AttentionCall(rule, marks, marks, plain=True))
