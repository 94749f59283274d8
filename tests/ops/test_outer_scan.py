"""Scans over outer products: chunks against the loop for every kind of decay, forward and gradients, odd lengths."""

from itertools import accumulate
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from anyformer.ops.recurrence.outer_product_scan import new_state, outer_scan, outer_scan_flops, outer_scan_loop

every_decay = pytest.mark.parametrize("decay", ["none", "head", "channel"])
B, H, N, C = 2, 4, 5, 3


class Given(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    log_a: Tensor | None
    start: Tensor

    @property
    def learned(self) -> list[Tensor]:
        return [x for x in self if x is not None]


def given(length: int, decay: str, strongest: float = 3.0, dtype: torch.dtype = torch.float64) -> Given:
    g = H if decay == "channel" else 2
    q, k, v = (torch.randn(B, length, *shape, dtype=dtype) for shape in ((g, N), (g, N), (H, C)))
    shape = {"none": None, "head": (B, length, H), "channel": (B, length, H, N)}[decay]
    log_a = None if shape is None else -strongest * torch.rand(shape, dtype=dtype)
    found = Given(q, k, v, log_a, torch.randn(B, g, N, H // g, C, dtype=dtype))
    for x in found.learned:
        x.requires_grad_()
    return found


@pytest.mark.row("XF-10", clause="linear attention: the parallel form equals the recurrent form")
@pytest.mark.row("SSM-05")
@every_decay
@pytest.mark.parametrize("packed", [False, True], ids=["whole", "packed"])
@pytest.mark.parametrize("length", [1, 2, 17, 63, 64, 65, 130])
def test_chunks_are_the_loop_forward_and_backward(decay: str, packed: bool, length: int) -> None:
    x, begins = given(length, decay), torch.rand(B, length) < 0.1 if packed else None
    weights = torch.randn(B, length, H, C, dtype=torch.float64), torch.randn_like(x.start)
    results = []
    for form in (outer_scan, outer_scan_loop):
        out = form(*x, begins)
        gradients = torch.autograd.grad(out, x.learned, weights, materialize_grads=True, allow_unused=True)
        results.append((*out, *gradients))
    for mine, other in zip(*results, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-11, rtol=1e-11)


@pytest.mark.row("XF-10")
@every_decay
def test_any_cut_with_the_state_handed_on_is_the_whole(decay: str) -> None:
    x = given(100, decay)
    whole, last = outer_scan(*x)
    state, pieces = x.start, []
    ends = list(accumulate((1, 20, 70, 9)))
    for start, end in zip([0, *ends], ends, strict=False):
        q, k, v, log_a = (None if y is None else y[:, start:end] for y in x[:4])
        y, state = outer_scan(q, k, v, log_a, state)  # type: ignore[arg-type, assignment]
        pieces.append(y)
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole)
    torch.testing.assert_close(state, last)


@pytest.mark.row("XF-10")
def test_without_decay_it_is_attention_without_a_softmax() -> None:
    q, k, v, _, _ = given(70, "none")
    scores = torch.einsum("bign,bjgn->bgij", q, k).tril().repeat_interleave(H // 2, dim=1)
    torch.testing.assert_close(outer_scan(q, k, v)[0], torch.einsum("bhij,bjhc->bihc", scores, v))


@pytest.mark.parametrize("decay", ["head", "channel"])
def test_the_strongest_decay_neither_overflows_nor_leaks(decay: str) -> None:
    x = given(130, decay, dtype=torch.float32)
    assert x.log_a is not None
    with torch.no_grad():
        x.log_a[:] = -200.0
    y, _ = outer_scan(*x)
    own = torch.einsum("btgn,btgn->btg", x.q, x.k).repeat_interleave(H // x.q.shape[2], dim=2)[..., None] * x.v
    torch.testing.assert_close(y[:, 1:], own[:, 1:], atol=1e-5, rtol=1e-5)
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(y.sum(), x.learned))


@every_decay
def test_low_precision_keeps_its_state_in_single(decay: str) -> None:
    x = given(100, decay, strongest=0.1, dtype=torch.float32)
    q, k, v = (y.detach().bfloat16() for y in x[:3])
    y, last = outer_scan(q, k, v, x.log_a, x.start)
    exact, _ = outer_scan_loop(q.float(), k.float(), v.float(), x.log_a, x.start)
    assert last is not None and last.dtype == y.dtype == torch.float32
    assert (y - exact).abs().mean() < 0.02 * exact.abs().mean()


@every_decay
@pytest.mark.parametrize("length", [17, 130])
def test_its_products_are_those_that_torch_counts(decay: str, length: int) -> None:
    x = given(length, decay)
    with FlopCounterMode(display=False) as counter:
        y, _ = outer_scan(x.q, x.k, x.v, x.log_a)
        forward = counter.get_total_flops()
        y.sum().backward()
    sizes = (B, length), (x.q.shape[2], H), (N, C)
    assert outer_scan_flops(*sizes, gated=decay == "channel", stateful=False) == forward
    assert counter.get_total_flops() == 3 * forward


def test_an_empty_state_changes_nothing() -> None:
    x = given(70, "head")
    empty = new_state(x.q, x.v)
    torch.testing.assert_close(outer_scan(x.q, x.k, x.v, x.log_a, empty)[0], outer_scan(x.q, x.k, x.v, x.log_a)[0])
