"""The selective scan: blocks against the loop, forward and gradients, at odd lengths; and what it keeps in memory."""

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from anyformer.ops.recurrence import selective_scan as module
from anyformer.ops.recurrence.selective_scan import (
    selective_scan,
    selective_scan_flops,
    selective_scan_gpu,
    selective_scan_loop,
)

B, D, N = 2, 5, 3


def given(length: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    x, dt = torch.randn(B, length, D), torch.rand(B, length, D)
    write, read = torch.randn(B, length, N), torch.randn(B, length, N)
    values = (x, dt, -4 * torch.rand(N, D), write, read, torch.randn(B, N, D))
    return [value.to(dtype).requires_grad_() for value in values]


@pytest.mark.row("SSM-05", clause="parallel scan equals the sequential loop")
@pytest.mark.parametrize("packed", [False, True], ids=["whole", "packed"])
@pytest.mark.parametrize("length", [1, 17, 63, 64, 65, 130])
def test_blocks_are_the_loop_forward_and_backward(monkeypatch: pytest.MonkeyPatch, packed: bool, length: int) -> None:
    monkeypatch.setitem(module._BLOCK, "cpu", 20 * B * D * N)
    x, begins = given(length), torch.rand(B, length) < 0.1 if packed else None
    weights = torch.randn(B, length, D, dtype=torch.float64), torch.randn(B, N, D, dtype=torch.float64)
    results = []
    for form in (selective_scan, selective_scan_loop):
        out = form(*x, begins)
        results.append((*out, *torch.autograd.grad(out, x, weights)))
    for mine, other in zip(*results, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-11, rtol=1e-11)


def test_gradients_are_those_of_finite_differences() -> None:
    assert torch.autograd.gradcheck(selective_scan, given(20), fast_mode=True)


def test_gradients_are_the_same_wherever_they_are_asked_for() -> None:
    x = given(20, torch.float32)
    y = selective_scan(*x)[0].square().sum()
    outside = torch.autograd.grad(y, x, retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        inside = torch.autograd.grad(y, x)
    assert all(map(torch.equal, inside, outside))


def test_a_step_of_nothing_changes_nothing() -> None:
    x, dt, a, write, read, start = given(30)
    with torch.no_grad():
        dt[:, 10:20] = 0.0
        live = [i for i in range(30) if not 10 <= i < 20]
        y, h = selective_scan(x, dt, a, write, read, start)
        shorter, same = selective_scan(x[:, live], dt[:, live], a, write[:, live], read[:, live], start)
    torch.testing.assert_close(y[:, live], shorter)
    torch.testing.assert_close(h, same)


def test_what_is_kept_for_the_backward_does_not_grow_with_the_states() -> None:
    length, n = 512, 16
    x, dt, write, read = (torch.rand(1, length, width, requires_grad=True) for width in (32, 32, n, n))
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y, _ = selective_scan(x, dt, -torch.ones(n, 32, requires_grad=True), write, read)
    assert sum(kept.values()) < 0.25 * 4 * length * 32 * n
    y.sum().backward()


def test_low_precision_is_carried_in_single() -> None:
    x = [value.bfloat16() for value in given(40, torch.float32)]
    y, h = selective_scan(*x)
    assert y.dtype == h.dtype == torch.float32
    torch.testing.assert_close(y, selective_scan_loop(*(value.float() for value in x))[0], atol=1e-4, rtol=1e-4)


def test_the_operator_of_a_gpu_counts_as_the_products_that_it_stands_for() -> None:
    x, dt, a, write, read, start = (value.detach().to("meta").requires_grad_() for value in given(30, torch.float32))
    with FlopCounterMode(display=False) as counter:
        out = selective_scan_gpu(start, a, x, dt, dt, write, read)
        forward = counter.get_total_flops()
        gradients = torch.autograd.grad([part.sum() for part in out], (start, a, x, dt, write, read))
    assert (forward, counter.get_total_flops() - forward) == selective_scan_flops(B * 30, N, D)
    assert [gradient.shape for gradient in gradients] == [value.shape for value in (start, a, x, dt, write, read)]


@pytest.mark.compile
def test_it_is_one_graph() -> None:
    x = given(40)
    compiled = torch.compile(selective_scan, fullgraph=True, backend="eager")
    ours, theirs = (torch.autograd.grad(form(*x)[0].square().sum(), x) for form in (compiled, selective_scan))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)
