"""One product for each group of rows, compared with a loop over rows, forward, gradients and gradients of gradients."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from anyformer.ops.grouped_linear import fits_grouped_mm, grouped_linear, outer_by_grouped_mm, product_by_grouped_mm

ROWS, INPUTS, OUTPUTS = 40, 16, 24
SIZES = [(9, 12, 1, 10), (0, 32, 0, 0), (0, 0, 0, 0), (10, 10, 10, 10), (1, 1, 1, 1)]
every_size = pytest.mark.parametrize("sizes", SIZES, ids=str)


def leaves(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(*size, generator=rng).to(dtype) for size in ((ROWS, INPUTS), (4, OUTPUTS, INPUTS)))
    return x.requires_grad_(), weight.requires_grad_()


def row_by_row(x: Tensor, weight: Tensor, sizes: tuple[int, ...]) -> Tensor:
    groups = [group for group, size in enumerate(sizes) for _ in range(size)]
    rows = [weight[group] @ row for group, row in zip(groups, x[: len(groups)], strict=True)]
    return torch.stack([*rows, *(0 * weight[0] @ row for row in x[len(groups) :])])


def ends(sizes: tuple[int, ...]) -> Tensor:
    return torch.tensor(sizes).cumsum(0)


@every_size
def test_products_of_groups_are_products_of_rows(sizes: tuple[int, ...]) -> None:
    inputs = leaves()
    mine, theirs = grouped_linear(*inputs, ends(sizes)), row_by_row(*inputs, sizes)
    torch.testing.assert_close(mine, theirs)
    slope = torch.randn_like(mine)
    for one, other in zip(*(torch.autograd.grad(y, inputs, slope) for y in (mine, theirs)), strict=True):
        torch.testing.assert_close(one, other)


def test_gradients_have_gradients() -> None:
    rng = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(size, generator=rng).double().requires_grad_() for size in ((6, 3), (3, 2, 3)))
    at = torch.tensor([2, 2, 5])
    assert torch.autograd.gradgradcheck(lambda rows, matrices: grouped_linear(rows, matrices, at), (x, weight))


def test_a_row_is_rounded_alike_in_groups_of_all_sizes() -> None:
    x, weight = (leaf.detach() for leaf in leaves(torch.float32))
    alone = [grouped_linear(x, weight, torch.tensor([size, 40, 40, 40]))[:1] for size in range(1, 41)]
    assert all(torch.equal(row, alone[0]) for row in alone)


@every_size
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_torchs_grouped_product_is_the_same(sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    """As on a GPU, where the operator uses it."""
    x, weight = (leaf.detach() for leaf in leaves(dtype))
    y, at, tolerance = torch.randn(ROWS, OUTPUTS).to(dtype), ends(sizes), 1e-5 if dtype == torch.float32 else 2e-2
    assert fits_grouped_mm(x, weight) and fits_grouped_mm(x, y) and not fits_grouped_mm(x[:, :9], weight)
    theirs = product_by_grouped_mm(x, weight, at), outer_by_grouped_mm(y, x, at)
    mine = torch.ops.anyformer.grouped_linear(x, weight, at), torch.ops.anyformer.grouped_outer(y, x, at)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)


def test_flops_are_those_of_one_product_for_each_group() -> None:
    inputs, sizes = leaves(), (9, 12, 9, 10)
    with FlopCounterMode(display=False) as mine:
        grouped_linear(*inputs, ends(sizes)).sum().backward()
    with FlopCounterMode(display=False) as theirs:
        torch.cat([F.linear(*pair) for pair in zip(inputs[0].split(sizes), inputs[1], strict=True)]).sum().backward()
    assert mine.get_total_flops() == theirs.get_total_flops() == 3 * 2 * ROWS * INPUTS * OUTPUTS


def test_autocast_multiplies_in_half_precision_and_gradients_keep_the_dtype() -> None:
    inputs = leaves(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y = grouped_linear(*inputs, ends(SIZES[0]))
    y.float().square().sum().backward()
    assert y.dtype == torch.bfloat16 and all(
        leaf.grad is not None and leaf.grad.dtype == torch.float32 for leaf in inputs
    )
    torch.testing.assert_close(y.float(), row_by_row(*inputs, SIZES[0]), atol=0.1, rtol=0.05)
