"""On a GPU: the kernel of one token a row against its definition."""

import pytest
import torch

from anyformer.ops.stepping import attend_step, attend_step_loop

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "groups", "channels"), [(4, 4, 16), (12, 12, 64), (8, 2, 128)])
def test_it_writes_and_reads_what_the_definition_does(
    dtype: torch.dtype, heads: int, groups: int, channels: int
) -> None:
    rows, room = 5, 300
    kind = {"device": "cuda", "dtype": dtype}
    q, (k, v) = torch.randn(rows, heads, channels, **kind), torch.randn(2, rows, groups, channels, **kind)
    keys, values = torch.randn(2, rows, room, groups, channels, **kind)
    filled = torch.zeros(rows, room, dtype=torch.bool, device="cuda")
    state, positions = (keys, values, filled), torch.tensor([0, 1, 127, 128, 299], device="cuda")
    apart = [tensor.float().cpu() if tensor.is_floating_point() else tensor.cpu() for tensor in state]
    expected = attend_step_loop(q.float().cpu(), k.float().cpu(), v.float().cpu(), tuple(apart), positions.cpu(), 0.3)
    y = attend_step(q, k, v, *state, positions, 0.3)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(y.float().cpu(), expected, rtol=tolerance, atol=tolerance)
    assert all(mine.float().cpu().equal(other.float()) for mine, other in zip(state, apart, strict=True))
