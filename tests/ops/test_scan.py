"""Linear scans: every form against the loop, forward and gradients, for odd lengths, resets and the strongest decay."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from anyformer.core import Frame
from anyformer.errors import SpecError
from anyformer.ops.recurrence.linear_scan import linear_scan, linear_scan_chunked, linear_scan_loop

Form = Callable[[Tensor, Tensor, Tensor | None], Tensor]
every_form = pytest.mark.parametrize("form", [linear_scan, linear_scan_chunked])


def inputs(length: int, width: tuple[int, ...] = (5,), dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Decays between 0 and 1 with resets and almost-resets among them."""
    a, b, start = torch.rand(2, length, *width), torch.randn(2, length, *width), torch.randn(2, *width)
    a[:, ::7], a[:, 3::11] = 0.0, 1e-30
    return [x.to(dtype).requires_grad_() for x in (a, b, start)]


@every_form
@pytest.mark.parametrize("length", [1, 2, 17, 63, 64, 65, 300])
def test_a_form_is_the_loop_forward_and_backward(form: Form, length: int) -> None:
    given = inputs(length)
    weight = torch.randn(2, length, 5, dtype=torch.float64)
    ours, theirs = form(*given), linear_scan_loop(*given)
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-12)
    gradients = (torch.autograd.grad(y, given, weight) for y in (ours, theirs))
    for mine, other in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("width", [(2, 3), (700,), (9000,)], ids=["many-chunks", "few-chunks", "one-chunk"])
def test_any_shape_and_number_of_chunks_will_do(width: tuple[int, ...]) -> None:
    given = inputs(50, width, torch.float32)
    torch.testing.assert_close(linear_scan_chunked(*given), linear_scan_loop(*given), atol=1e-6, rtol=1e-5)


@every_form
def test_gradients_are_those_of_finite_differences_twice_over(form: Form) -> None:
    given = inputs(20, (1,))
    assert torch.autograd.gradcheck(form, given, fast_mode=True)
    assert torch.autograd.gradgradcheck(form, given, fast_mode=True)


@every_form
def test_the_strongest_decay_neither_overflows_nor_leaks(form: Form) -> None:
    a, b, start = inputs(200, dtype=torch.float32)
    with torch.no_grad():
        a[:] = 1e-38
        h = form(a, b, start)
    torch.testing.assert_close(h, b)
    gradients = torch.autograd.grad(form(a, b, start).sum(), (a, b, start))
    assert all(gradient.isfinite().all() for gradient in gradients)


@every_form
def test_weak_decay_stays_exact_over_a_thousand_tokens(form: Form) -> None:
    a, b = 1 - 1e-3 * torch.rand(1, 1000, 3), torch.randn(1, 1000, 3)
    exact = linear_scan_loop(a.double(), b.double())
    assert (form(a, b, None) - exact).abs().max() < 1e-5 * exact.abs().max()


@every_form
def test_a_zero_forgets_all_that_was_before(form: Form) -> None:
    a, b, start = inputs(40)
    with torch.no_grad():
        a[:, 25] = 0.0
        torch.testing.assert_close(form(a, b, start)[:, 25:], form(a[:, 25:], b[:, 25:], None))


def test_complex_recurrences_turn() -> None:
    a = torch.polar(torch.rand(2, 40, 3, dtype=torch.float64), torch.randn(2, 40, 3, dtype=torch.float64))
    given = [a.requires_grad_(), torch.randn_like(a).requires_grad_(), torch.randn_like(a[:, 0]).requires_grad_()]
    weight = torch.randn_like(a)
    results = []
    for form in (linear_scan_chunked, linear_scan_loop):
        y = form(*given)
        results.append((y, *torch.autograd.grad(y, given, weight)))
    for mine, other in zip(*results, strict=True):
        torch.testing.assert_close(mine, other)


def test_low_precision_is_carried_in_single() -> None:
    a, b, _ = inputs(40, dtype=torch.bfloat16)
    h = linear_scan(a, b)
    assert h.dtype == torch.float32
    torch.testing.assert_close(h, linear_scan_loop(a.float(), b.float()), atol=1e-5, rtol=1e-5)


@pytest.mark.compile
def test_a_scan_is_one_graph() -> None:
    given = inputs(40)
    compiled = torch.compile(linear_scan, fullgraph=True, backend="eager")
    ours, theirs = (torch.autograd.grad(form(*given).square().sum(), given) for form in (compiled, linear_scan))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)


def found(**marks: list[int]) -> list[int] | None:
    frame = Frame(
        **{name: torch.tensor([row]).bool() if name == "valid" else torch.tensor([row]) for name, row in marks.items()}
    )
    begins = frame.document_starts(torch.zeros(1, 6, 2))
    return None if begins is None else begins[0].nonzero()[:, 0].tolist()


def test_a_document_begins_at_position_0_or_with_another_segment() -> None:
    assert found() is None
    assert found(positions=[0, 1, 2, 0, 1, 2]) == [0, 3]
    assert found(positions=[3, 4, 0, 1, 2, 3]) == [2]
    assert found(segments=[0, 0, 1, 1, 1, 2]) == [0, 2, 5]


def test_padding_begins_nothing_and_hides_no_beginning() -> None:
    assert found(positions=[0, 0, 0, 1, 2, 3], valid=[0, 0, 1, 1, 1, 1]) == [2]
    assert found(segments=[1, 1, 0, 0, 1, 2], valid=[1, 1, 0, 0, 1, 1]) == [0, 5]
    assert found(segments=[1, 1, 2, 2, 2, 2], valid=[1, 1, 0, 1, 1, 1]) == [0, 3]


def test_a_state_without_positions_is_refused() -> None:
    with pytest.raises(SpecError, match=r"frame.positions"):
        Frame().document_starts(torch.zeros(1, 6, 2), torch.zeros(1, 2))
