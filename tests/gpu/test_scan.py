"""On a GPU: the kernels of the linear scan against its definition, alone and between the chunks of an outer scan."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from anyformer.ops.recurrence import linear_scan as module
from anyformer.ops.recurrence.linear_scan import linear_scan, linear_scan_gpu, linear_scan_loop, supports_linear_scan
from anyformer.ops.recurrence.outer_product_scan import outer_scan, outer_scan_loop

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

SHAPES = {
    "own": ((5,), (5,)),
    "blocks": ((2, 150), (2, 150)),
    "none": ((), ()),
    "line": ((1,), (300,)),
    "lines": ((3, 1), (3, 70)),
    "repeats": ((1, 7), (4, 7)),
    "heads": ((1, 1, 24, 1), (1, 16, 24, 64)),
    "groups": ((2, 1, 3, 1), (2, 4, 3, 6)),
}
"""Of a step of a and of b."""
every_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
Shape = tuple[tuple[int, ...], tuple[int, ...]]


def given(length: int, shape: Shape, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Decays between 0 and 1 with resets and almost-resets among them."""
    a, b, start = torch.rand(2, length, *shape[0]), torch.randn(2, length, *shape[1]), torch.randn(2, *shape[1])
    a[:, ::7], a[:, 3::11] = 0.0, 1e-30
    return [x.cuda() for x in (a, b.to(dtype), start)]


def with_gradients(scan: Callable[..., Tensor], values: list[Tensor]) -> list[Tensor]:
    """What it gives, and the gradients of a sum with weights that are no constant."""
    values = [value.detach().requires_grad_() for value in values]
    h = scan(*values)
    return [h, *torch.autograd.grad(((3 * h.detach()).sin() * h).sum(), values)]


def compare(ours: list[Tensor], theirs: list[Tensor], share: float = 1e-5) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        largest = float(other.detach().abs().max())
        torch.testing.assert_close(mine.double(), other.double(), rtol=share, atol=share * (1 + largest))


@every_shape
@pytest.mark.parametrize("length", [2, 3, 8, 15, 16, 17, 100, 515])
def test_kernels_are_the_loop_forward_and_backward(length: int, shape: Shape) -> None:
    values = given(length, shape)
    assert supports_linear_scan(*values[:2])
    exact = with_gradients(linear_scan_loop, [value.double() for value in values])
    compare(with_gradients(linear_scan, values), exact)


def test_one_step_is_a_scan() -> None:
    values = given(1, SHAPES["lines"])
    compare(with_gradients(linear_scan_gpu, values), with_gradients(linear_scan_loop, values))


@pytest.mark.parametrize("length", [40, 5000])
def test_many_channels_need_no_chunks_and_few_have_many(length: int) -> None:
    values = given(length, ((64,), (64,)) if length > 40 else ((1, 2000), (90, 2000)))
    compare(with_gradients(linear_scan, values), with_gradients(linear_scan_loop, values), 1e-4)


def test_no_start_is_a_start_of_zeros() -> None:
    a, b, start = given(50, SHAPES["own"])
    assert linear_scan(a, b).equal(linear_scan(a, b, torch.zeros_like(start)))


def test_what_does_not_lie_in_order_is_found() -> None:
    values = given(50, SHAPES["lines"])
    turned = [value.transpose(0, -1).contiguous().transpose(0, -1) for value in values]
    assert all(map(torch.equal, with_gradients(linear_scan, values), with_gradients(linear_scan, turned)))


@every_shape
def test_low_precision_is_read_as_it_is_and_carried_in_single(shape: Shape) -> None:
    values = given(50, shape, torch.bfloat16)
    ours = with_gradients(linear_scan, values)
    theirs = with_gradients(linear_scan, [value.float() for value in values])
    assert [x.dtype for x in ours] == [torch.float32, torch.float32, torch.bfloat16, torch.float32]
    compare(ours, theirs, 2**-8)
    compare([*ours[:2], ours[3]], [*theirs[:2], theirs[3]])


def test_what_no_table_says_goes_another_way() -> None:
    values = given(50, ((1, 3, 1, 3, 1, 3), (2, 3, 2, 3, 2, 3)))
    assert not supports_linear_scan(*values[:2])
    assert not supports_linear_scan(*(value.to(torch.complex64) for value in given(50, SHAPES["own"])[:2]))
    compare(with_gradients(linear_scan, values), with_gradients(linear_scan_loop, values))


def test_a_second_time_gives_the_same_bits() -> None:
    values = given(2000, SHAPES["groups"])
    first, second = (with_gradients(linear_scan, values) for _ in range(2))
    assert all(map(torch.equal, first, second))


def test_second_derivatives_are_refused() -> None:
    values = [value.requires_grad_() for value in given(20, SHAPES["own"])]
    first = torch.autograd.grad(linear_scan(*values).square().sum(), values, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        torch.autograd.grad(first[0].sum(), values)


@pytest.mark.compile
@every_shape
def test_compiled_it_is_one_graph_with_the_same_gradients(shape: Shape) -> None:
    values = given(50, shape)
    torch.compiler.reset()
    compiled = torch.compile(linear_scan, fullgraph=True)
    compare(with_gradients(compiled, values), with_gradients(linear_scan, values))


def test_decays_that_are_shared_are_never_made_larger() -> None:
    values = [value.requires_grad_() for value in given(500, ((1, 24, 1), (32, 24, 64)))]
    torch.autograd.grad(linear_scan(*values).sum(), values)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.autograd.grad(linear_scan(*values).sum(), values)  # h, what is summed up and the gradient of b
    assert torch.cuda.max_memory_allocated() - before < 3.5 * 4 * values[1].numel()


@pytest.mark.parametrize("groups", [1, 2])
def test_an_outer_scan_gives_what_it_gives_without_the_kernels(monkeypatch: pytest.MonkeyPatch, groups: int) -> None:
    q, k, v = (torch.randn(2, 700, *shape, device="cuda") for shape in ((groups, 16), (groups, 16), (4, 32)))
    values = [q, k, v, -torch.rand(2, 700, 4, device="cuda")]
    ours = with_gradients(lambda *x: outer_scan(*x)[0], values)
    exact = with_gradients(lambda *x: outer_scan_loop(*x)[0], [value.double() for value in values])
    compare(ours, exact, 1e-4)
    monkeypatch.setattr(module, "supports_linear_scan", lambda a, b: False)
    compare(ours, with_gradients(lambda *x: outer_scan(*x)[0], values), 1e-4)


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.mem_get_info()[0] < 64 << 30, reason="needs 64 GB of a GPU"
)
def test_places_beyond_two_billion_are_found() -> None:
    a, b = torch.rand(1, 1 << 14, 1, device="cuda"), torch.randn(1, 1 << 14, 1 << 16, device="cuda")
    h = linear_scan(a.expand(3, -1, -1), b.expand(3, -1, -1))
    assert h.numel() > 1 << 31
    torch.testing.assert_close(h[2], linear_scan(a, b)[0])
