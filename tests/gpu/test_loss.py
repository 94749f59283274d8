"""On a GPU: the loss over a vocabulary against its definition, its kernel against the plain code, and what it takes."""

import pytest
import torch
from torch import Tensor

from anyformer.core import LogitProduct
from anyformer.ops.loss import _consume_all, _How, cross_entropy, cross_entropy_plain

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

N, D = 700, 64
ODD = 50257
"""Words of GPT-2: rows of so many logits do not begin at whole vectors."""
HOW = [_How(0.0, 0.0, True), _How(0.1, 0.01, True), _How(0.1, 0.01, False), _How(0.1, 0.01, True, cap=3.0)]
ROUNDING = {torch.float32: (1e-5, 1e-7), torch.bfloat16: (1e-2, 1e-7), torch.float16: (2e-3, 2e-7)}


def inputs(vocab: int, dtype: torch.dtype = torch.float32) -> tuple[list[Tensor], Tensor, Tensor]:
    """Hidden states, table and bias that learn; targets; weights, a third of them 0."""
    shapes = (N, D), (vocab, D), (vocab,)
    leaves = [(0.3 * torch.randn(shape, device="cuda")).to(dtype).requires_grad_() for shape in shapes]
    weights = torch.rand(N, device="cuda") * (torch.arange(N, device="cuda") % 3 > 0)
    return leaves, torch.randint(vocab, (N,), device="cuda"), weights


def exact(leaves: list[Tensor], targets: Tensor, weights: Tensor) -> list[Tensor]:
    h, weight, bias = (leaf.detach().double().requires_grad_() for leaf in leaves)
    loss = 3 * cross_entropy_plain(h, weight, targets, weights.double(), bias=bias, smoothing=0.1, z=0.01)
    return [loss, *torch.autograd.grad(loss, (h, weight, bias))]


def step(leaves: list[Tensor], targets: Tensor, weights: Tensor) -> Tensor:
    """The last of its chunks is shorter."""
    h, weight, bias = leaves
    return 3 * cross_entropy(LogitProduct(h, weight, bias), targets, weights, smoothing=0.1, z=0.01, chunk=512)


def assert_near(found: list[Tensor], wanted: list[Tensor], tolerance: float) -> None:
    for mine, other in zip(found, wanted, strict=True):
        assert (mine.double() - other).abs().max() <= tolerance * other.abs().max()


@pytest.mark.parametrize("vocab", [1000, 32768, ODD])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.compile)], ids=["eager", "compiled"])
def test_value_and_gradients_are_those_of_the_definition(vocab: int, dtype: torch.dtype, compiled: bool) -> None:
    leaves, targets, weights = inputs(vocab, dtype)
    loss = (torch.compile(step, fullgraph=True) if compiled else step)(leaves, targets, weights)
    gradients = torch.autograd.grad(loss, leaves)
    assert loss.dtype == torch.float32 and all(gradient.dtype == dtype for gradient in gradients)
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-4
    assert_near([loss, *gradients], exact(leaves, targets, weights), tolerance)


def test_mixed_precision_leaves_the_gradients_whole() -> None:
    leaves, targets, weights = inputs(ODD)
    with torch.autocast("cuda", torch.bfloat16):
        loss = step(leaves, targets, weights)
    gradients = torch.autograd.grad(loss, leaves)
    assert all(gradient.dtype == torch.float32 for gradient in gradients)
    assert_near([loss, *gradients], exact(leaves, targets, weights), 2e-2)


@pytest.mark.parametrize("vocab", [5, 1000, 8192, ODD, 131072])
@pytest.mark.parametrize("dtype", list(ROUNDING), ids=str)
@pytest.mark.parametrize("how", HOW, ids=str)
def test_the_kernel_is_the_plain_code(vocab: int, dtype: torch.dtype, how: _How) -> None:
    rows = torch.full((9, vocab + -vocab % 64), torch.nan, dtype=dtype)
    rows[:, :vocab] = 4 * torch.randn(9, vocab)
    targets, weights = torch.randint(vocab, (9,)), torch.rand(9)
    targets[:2] = torch.tensor([0, vocab - 1])
    here = rows, targets, weights, torch.full((9,), torch.nan)
    there = [tensor.cuda() for tensor in here]
    for mine, *others in (here, there):
        _consume_all(mine, mine[:, :vocab], *others, how)
    torch.testing.assert_close(there[3].cpu(), here[3], rtol=1e-5, atol=1e-5)
    if how.learns:  # else nobody asks what becomes of the logits
        relative, absolute = ROUNDING[dtype]
        torch.testing.assert_close(there[0][:, :vocab].cpu(), rows[:, :vocab], rtol=relative, atol=absolute)
        assert not there[0][:, vocab:].any()


@pytest.mark.parametrize("vocab", [1000, ODD])
def test_what_rows_of_weight_0_hold_does_not_matter(vocab: int) -> None:
    (h, weight, bias), targets, weights = inputs(vocab, torch.bfloat16)
    broken = h.detach().masked_fill(weights[:, None] == 0, torch.nan).requires_grad_()
    odd = targets.masked_fill(weights == 0, -100)
    whole, mine = (step([x, weight, bias], y, weights) for x, y in ((h, targets), (broken, odd)))
    assert torch.equal(mine, whole)
    found, wanted = (torch.autograd.grad(loss, (x, weight, bias)) for loss, x in ((mine, broken), (whole, h)))
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert not found[0][weights == 0].any()


def test_broken_logits_of_weight_0_leave_no_trace() -> None:
    rows = torch.full((2, 1024), torch.nan, device="cuda")
    rows[1] = 1.0
    losses, targets = torch.full((2,), torch.nan, device="cuda"), torch.zeros(2, dtype=torch.long, device="cuda")
    _consume_all(rows, rows[:, :1000], targets, torch.tensor([0.0, 1.0], device="cuda"), losses, _How(0.1, 0.1, True))
    assert losses[0] == 0.0 and not rows[0].any() and losses[1].isfinite() and rows[1, :1000].isfinite().all()


def test_without_gradients_the_value_is_the_same_and_large_logits_do_not_overflow() -> None:
    leaves, targets, weights = inputs(ODD, torch.bfloat16)
    loss = step(leaves, targets, weights)
    with torch.no_grad():
        torch.testing.assert_close(step(leaves, targets, weights), loss.detach(), rtol=1e-6, atol=0.0)
    high, one = torch.full((1, D), 1e4, device="cuda"), torch.ones(1, device="cuda")
    found = cross_entropy(
        LogitProduct(high, torch.eye(1000, D, device="cuda")), torch.zeros_like(one, dtype=torch.long), one
    )
    torch.testing.assert_close(found, torch.tensor(D, device="cuda").float().log())


def test_it_takes_one_chunk_of_logits_and_no_copy_of_them() -> None:
    h = torch.randn(4096, D, device="cuda", dtype=torch.bfloat16).requires_grad_()
    weight = torch.randn(ODD, D, device="cuda", dtype=torch.bfloat16).requires_grad_()
    targets, weights = torch.randint(ODD, (4096,), device="cuda"), torch.ones(4096, device="cuda")
    for _ in range(2):  # the first time products ask for their own room
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        torch.autograd.grad(cross_entropy(LogitProduct(h, weight), targets, weights, chunk=1024), (h, weight))
        taken = torch.cuda.max_memory_allocated() - before
    assert taken < 1.05 * 2 * 1024 * ODD + h.nbytes + weight.nbytes
