"""On a GPU: torch's grouped product against one product for each group on a CPU, forward and gradients."""

import pytest
import torch

from anyformer.ops.grouped_linear import grouped_linear

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sizes", [(9, 12, 1, 10), (0, 32, 0, 0), (0, 0, 0, 0), (10, 10, 10, 10)], ids=str)
@pytest.mark.parametrize("widths", [(16, 24), (15, 24)], ids=["aligned", "not aligned"])
def test_products_of_groups(dtype: torch.dtype, sizes: tuple[int, ...], widths: tuple[int, int]) -> None:
    x, weight, slope = torch.randn(40, widths[0]), torch.randn(4, *reversed(widths)), torch.randn(40, widths[1])
    ends, results = torch.tensor(sizes).cumsum(0), []
    for device, precision in (("cuda", dtype), ("cpu", torch.float64)):
        leaves = [leaf.to(dtype).to(device, precision).requires_grad_() for leaf in (x, weight)]
        y = grouped_linear(leaves[0], leaves[1], ends.to(device))
        results.append([y, *torch.autograd.grad(y, leaves, slope.to(dtype).to(device, precision))])
    for mine, exact in zip(*results, strict=True):
        tolerance = 1e-2 if dtype == torch.bfloat16 else 2e-3  # TF32
        assert (mine.cpu().double() - exact).abs().max() <= tolerance * exact.abs().max().clamp(min=1.0)
