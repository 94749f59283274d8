"""Which decays the kernels of a linear scan know how to share, and that others go on without them."""

import pytest
import torch

from anyformer.ops.recurrence.linear_scan import channels_of, linear_scan, linear_scan_loop, supports_linear_scan

TABLES = [
    ((), (), (1, 1, 1, 1, False)),
    ((5,), (5,), (1, 1, 1, 5, False)),
    ((2, 3), (2, 3), (1, 1, 1, 6, False)),
    ((1,), (5,), (1, 1, 1, 5, True)),
    ((1, 7), (4, 7), (1, 4, 1, 7, False)),
    ((2, 1, 7), (2, 3, 7), (2, 3, 1, 7, False)),
    ((3, 4, 1), (3, 4, 8), (1, 1, 12, 8, True)),
    ((1, 1, 24, 1), (1, 128, 24, 64), (1, 128, 24, 64, True)),
    ((2, 1, 3, 1), (2, 4, 3, 6), (2, 4, 3, 6, True)),
    ((1, 5, 1, 1), (1, 5, 1, 1), (1, 1, 1, 5, False)),
]


@pytest.mark.parametrize(("a", "b", "table"), TABLES, ids=str)
def test_shapes_that_broadcast_are_a_table(a: tuple[int, ...], b: tuple[int, ...], table: tuple[int, ...]) -> None:
    found = channels_of(a, b)
    assert found == table
    assert found.channels == torch.Size(b).numel() and found.decays == torch.Size(a).numel()


@pytest.mark.parametrize("b", [(1,), (37,), (128,), (300,), (7, 3), (5000, 2)], ids=str)
def test_blocks_cover_a_table(b: tuple[int, ...]) -> None:
    for a in (b, (*b[:-1], 1)):
        found = channels_of(a, b)
        assert found is not None and found.wide * found.high == 128
        assert found.across * found.wide >= found.width
        assert found.blocks // found.across * found.high >= found.lines


@pytest.mark.parametrize(("a", "b"), [((1, 3, 1, 3, 1), (2, 3, 2, 3, 2)), ((3,), (2, 3)), ((2,), (6,))], ids=str)
def test_what_no_table_says_is_refused(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    assert channels_of(a, b) is None


def test_a_cpu_scans_what_broadcasts_without_kernels() -> None:
    a, b, start = torch.rand(2, 40, 2, 1, 3, 1), torch.randn(2, 40, 2, 4, 3, 5), torch.randn(2, 2, 4, 3, 5)
    given = [x.double().requires_grad_() for x in (a, b, start)]
    assert not supports_linear_scan(a, b)
    ours, theirs = (torch.autograd.grad(form(*given).square().sum(), given) for form in (linear_scan, linear_scan_loop))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)
