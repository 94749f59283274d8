"""On a GPU: the kernels of the selective scan against its definition, alone and inside a Mamba part."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from anyformer.core import Frame, Part, Site, initialise
from anyformer.ops.recurrence import selective_scan as module
from anyformer.ops.recurrence.selective_scan import selective_scan, selective_scan_loop, supports_selective_scan
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.mixers.mamba import Mamba

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

SIZES = [(1, 2, 1, 3), (2, 16, 16, 32), (2, 70, 5, 37), (3, 129, 16, 96), (1, 300, 16, 352)]
"""Rows, tokens, states and channels: less than a tile and a block, exactly one, and whatever does not fit."""


def given(rows: int, length: int, states: int, channels: int) -> list[Tensor]:
    x, dt = torch.randn(rows, channels, length).transpose(1, 2), torch.rand(rows, length, channels)
    dt[:, length // 2 : length // 2 + 5] = 0.0  # padding
    write, read = torch.randn(rows, length, 2 * states).chunk(2, dim=-1)
    a, start = -4 * torch.rand(channels, states).T, torch.randn(rows, states, channels)
    return [value.cuda() for value in (x, dt, a, write, read, start)]


def with_gradients(scan: Callable[..., tuple[Tensor, Tensor]], values: list[Tensor], *others: Tensor) -> list[Tensor]:
    """What it gives, and the gradients of a sum with weights that are no constant."""
    values = [value.detach().requires_grad_() for value in values]
    out = scan(*values, *others)
    total = sum(((3 * part.detach()).sin() * part).sum() for part in out)
    return [*out, *torch.autograd.grad(total, values)]


def trained(part: Callable[..., object], x: Tensor, frame: Frame, weights: list[Tensor]) -> list[Tensor]:
    with torch.autocast("cuda", torch.bfloat16):
        y = part(x, frame).y
    return [y, *torch.autograd.grad(y.float().square().sum(), [x, *weights])]


@pytest.fixture
def mamba() -> tuple[Part, Tensor, Frame]:
    """A part, and rows of documents of 40 tokens."""
    part = Mamba().build(Site(dim=48))
    initialise(part, NormalInit(), seed=0)
    positions = torch.arange(150, device="cuda").remainder(40).expand(3, -1)
    return part.cuda(), torch.randn(3, 150, 48, device="cuda", requires_grad=True), Frame(positions=positions)


@pytest.mark.row("SSM-05", clause="parallel scan equals the sequential loop")
@pytest.mark.parametrize("packed", [False, True], ids=["whole", "packed"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_kernels_are_the_loop_forward_and_backward(size: tuple[int, int, int, int], packed: bool) -> None:
    values = given(*size)
    assert supports_selective_scan(values[0])
    begins = [torch.rand(size[:2], device="cuda") < 0.1] if packed else []
    ours, theirs = (
        with_gradients(selective_scan, values, *begins),
        with_gradients(selective_scan_loop, [value.double() for value in values], *begins),
    )
    for mine, other in zip(ours, theirs, strict=True):
        largest = max(1.0, float(other.detach().abs().max()))
        torch.testing.assert_close(mine.double(), other, rtol=1e-4, atol=1e-4 * largest)


def test_a_second_time_gives_the_same_bits() -> None:
    values = given(3, 200, 16, 96)
    first, second = (with_gradients(selective_scan, values) for _ in range(2))
    assert all(mine.equal(other) for mine, other in zip(first, second, strict=True))


def test_mixed_precision_gives_what_it_gives_without_the_kernels(
    monkeypatch: pytest.MonkeyPatch, mamba: tuple[Part, Tensor, Frame]
) -> None:
    part, x, frame = mamba
    ours = trained(part, x, frame, [*part.parameters()])
    monkeypatch.setattr(module, "supports_selective_scan", lambda x: False)
    theirs = trained(part, x, frame, [*part.parameters()])
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=2e-2, atol=2e-2 * float(other.detach().abs().max()))


@pytest.mark.compile
def test_compiled_it_is_one_graph_with_the_same_gradients(mamba: tuple[Part, Tensor, Frame]) -> None:
    part, x, frame = mamba
    compiled = torch.compile(part, fullgraph=True)
    ours, theirs = (trained(form, x, frame, [*part.parameters()]) for form in (compiled, part))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=2e-2, atol=2e-2 * float(other.detach().abs().max()))


def test_no_state_of_a_token_reaches_the_memory() -> None:
    rows, length, states, channels = 4, 512, 16, 352
    values = given(rows, length, states, channels)
    with_gradients(selective_scan, values)
    values = [value.contiguous().requires_grad_() for value in values]
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.autograd.grad(selective_scan(*values)[0].sum(), values)
    assert torch.cuda.max_memory_allocated() - before < 0.75 * 4 * rows * length * states * channels


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.mem_get_info()[0] < 64 << 30, reason="needs 64 GB of a GPU"
)
def test_places_beyond_two_billion_are_found() -> None:
    x, dt = torch.randn(1, 1 << 17, 6144, device="cuda"), torch.rand(1, 1 << 17, 6144, device="cuda")
    write, read = torch.randn(2, 1, 1 << 17, 1, device="cuda")
    a = -torch.rand(1, 6144, device="cuda")
    y, last = selective_scan(*(z.expand(3, -1, -1) for z in (x, dt)), a, *(z.expand(3, -1, -1) for z in (write, read)))
    alone, h = selective_scan(x, dt, a, write, read)
    assert y.numel() > 1 << 31
    assert y[2].equal(alone[0]) and last[2].equal(h[0])
