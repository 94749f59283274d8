"""On a GPU: rows of any lengths through its recurrent kernels give what the cells give on the CPU, step by step."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.ops.test_recurrence import B, D, T, every_cell, layout, random_start, random_weights
from torch import Tensor
from torch.utils._pytree import tree_map

from anyformer.ops.recurrence.cells import Cell, recur, recur_loop

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def on_gpu(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    moved = value.detach().cuda()
    return moved.requires_grad_() if moved.is_floating_point() else moved


def with_gradients(run: Callable[..., Any], cell: Cell, given: tuple[Any, ...]) -> list[Tensor]:
    weights, x, start, marks = given
    y, last = run(cell, weights, x, start, *marks)
    out = [y, *(last if start else ())]
    score = torch.stack([leaf.square().sum() for leaf in out]).sum()
    return [*out, *torch.autograd.grad(score, [x, *weights, *(start or ())])]


@every_cell
@pytest.mark.parametrize("stateful", [False, True], ids=["alone", "goes_on"])
@pytest.mark.parametrize("name", ["plain", "right", "left", "holes", "packed", "packed_with_holes"])
def test_rows_of_any_lengths_are_the_loop_of_the_cpu(cell: Cell, name: str, stateful: bool) -> None:
    x = torch.randn(B, T, D, dtype=torch.float64, requires_grad=True)
    given = random_weights(cell), x, random_start(cell) if stateful else None, layout(name)
    mine, theirs = with_gradients(recur, cell, tree_map(on_gpu, given)), with_gradients(recur_loop, cell, given)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one.cpu(), other, atol=1e-9, rtol=1e-7)
