"""The chunked loss against its definition and torch's: value, gradients, what is ignored and what is kept."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from anyformer.core import Frame, LogitProduct
from anyformer.ops import loss as losses
from anyformer.ops.loss import (
    _add_product,
    _How,
    _in_chunks,
    cross_entropy,
    cross_entropy_plain,
    loss_in_chunks,
    tokens_with_weight,
)

N, D, V = 23, 6, 17
row = pytest.mark.row


def inputs(n: int = N, dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], Tensor, Tensor]:
    """Hidden states, table and bias that learn; targets; weights, a third of them 0."""
    leaves = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in ((n, D), (V, D), (V,))]
    weights = torch.rand(n, dtype=dtype) * (torch.arange(n) % 3 > 0)
    return leaves, torch.randint(V, (n,)), weights


@pytest.mark.parametrize("n", [1, 2, 17, 64, 65])
@pytest.mark.parametrize("chunk", [None, 1, 8, 64])
@pytest.mark.parametrize(
    ("smoothing", "z", "cap"), [(0.0, 0.0, 0.0), (0.1, 0.0, 0.0), (0.0, 1e-2, 0.0), (0.2, 0.1, 0.0), (0.2, 0.1, 1.5)]
)
def test_chunks_equal_the_definition(n: int, chunk: int | None, smoothing: float, z: float, cap: float) -> None:
    leaves, targets, weights = inputs(n)
    h, weight, bias = leaves
    mine = cross_entropy(
        LogitProduct(h, weight, bias), targets, weights, smoothing=smoothing, z=z, cap=cap, chunk=chunk
    )
    plain = cross_entropy_plain(h, weight, targets, weights, bias=bias, smoothing=smoothing, z=z, cap=cap)
    torch.testing.assert_close(mine, plain)
    for a, b in zip(*(torch.autograd.grad(3.0 * loss, leaves) for loss in (mine, plain)), strict=True):
        torch.testing.assert_close(a, b)


@row("OPT-02", clause=("the target is (1 - eps) one-hot + eps / V", "equals nn.CrossEntropyLoss(label_smoothing=0.1)"))
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_it_is_torchs_smoothed_cross_entropy(smoothing: float) -> None:
    (h, weight, _), targets, _ = inputs()
    theirs = nn.CrossEntropyLoss(label_smoothing=smoothing, reduction="sum")(F.linear(h, weight), targets)
    mine = cross_entropy(LogitProduct(h, weight), targets, torch.ones(N), smoothing=smoothing, chunk=5)
    torch.testing.assert_close(mine, theirs)


def test_ignored_tokens_are_dropped_whatever_they_hold() -> None:
    (h, weight, _), targets, weights = inputs()
    broken = h.detach().clone()
    broken[weights == 0] = torch.nan
    leaf = broken.requires_grad_()
    loss = cross_entropy(LogitProduct(leaf, weight), targets, weights)
    assert torch.equal(loss, cross_entropy(LogitProduct(h, weight), targets, weights))
    (gradient,) = torch.autograd.grad(loss, leaf)
    assert torch.equal(gradient[weights == 0], torch.zeros(int((weights == 0).sum()), D, dtype=h.dtype))
    assert len(tokens_with_weight(h, targets, weights)[0]) == int((weights > 0).sum())


def test_nothing_to_score_is_zero_and_not_nan() -> None:
    (h, weight, bias), targets, weights = inputs()
    loss = cross_entropy(LogitProduct(h, weight, bias), targets, 0 * weights)
    assert loss == 0.0
    assert all(not g.any() for g in torch.autograd.grad(loss, (h, weight, bias)))


def test_only_what_learns_gets_a_gradient_and_without_gradients_the_value_is_the_same() -> None:
    (h, weight, _), targets, weights = inputs()
    loss = cross_entropy(LogitProduct(h, weight.detach()), targets, weights)
    (gradient,) = torch.autograd.grad(loss, h)
    assert gradient.abs().sum() > 0
    with torch.no_grad():
        silent = cross_entropy(LogitProduct(h, weight), targets, weights)
    assert torch.equal(silent, loss) and not silent.requires_grad


def test_large_logits_do_not_overflow() -> None:
    h = torch.full((1, D), 1e4)
    loss = cross_entropy(LogitProduct(h, torch.eye(V, D)), torch.tensor([0]), torch.ones(1))
    torch.testing.assert_close(loss, torch.tensor(D).float().log())


def test_low_precision_sums_in_single() -> None:
    leaves, targets, weights = inputs(300, torch.float32)
    low = [leaf.detach().bfloat16().requires_grad_() for leaf in leaves]
    exact = [leaf.detach().float().requires_grad_() for leaf in low]
    losses = (cross_entropy(LogitProduct(h, w, b), targets, weights, chunk=32) for h, w, b in (low, exact))
    mine, plain = losses
    assert mine.dtype == torch.float32
    torch.testing.assert_close(mine, plain, rtol=2e-3, atol=0.0)
    for a, b in zip(torch.autograd.grad(mine, low), torch.autograd.grad(plain, exact), strict=True):
        assert a.dtype == torch.bfloat16
        assert (a.float() - b).abs().max() < 0.02 * b.abs().max()


def test_autocast_makes_the_products_low_and_leaves_the_gradients_whole() -> None:
    leaves, targets, weights = inputs(64, torch.float32)
    h, weight, _ = leaves
    with torch.autocast("cpu", torch.bfloat16):
        loss = cross_entropy(LogitProduct(h, weight), targets, weights)
    exact = cross_entropy_plain(h, weight, targets, weights)
    assert loss.dtype == torch.float32 and not torch.equal(loss, exact)
    torch.testing.assert_close(loss, exact, rtol=1e-2, atol=0.0)
    for a, b in zip(torch.autograd.grad(loss, (h, weight)), torch.autograd.grad(exact, (h, weight)), strict=True):
        assert a.dtype == torch.float32
        assert (a - b).abs().max() < 0.03 * b.abs().max()


def in_a_step(h: Tensor, weight: Tensor, targets: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
    """The loss with something before it and behind it."""
    loss = cross_entropy(LogitProduct(h.tanh(), weight, bias), targets, weights, smoothing=0.1, z=0.01, chunk=16)
    return 3 * loss + h.square().sum()


def in_a_plain_step(h: Tensor, weight: Tensor, targets: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
    loss = cross_entropy_plain(h.tanh(), weight, targets, weights, bias=bias, smoothing=0.1, z=0.01)
    return 3 * loss + h.square().sum()


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_it_compiles_into_one_graph(backend: str) -> None:
    compiled = torch.compile(in_a_step, fullgraph=True, backend=backend)
    for n in (64, 64, 37):  # another number of tokens is another graph at most
        leaves, targets, weights = inputs(n, torch.float32)
        h, weight, bias = leaves
        loss, plain = (step(h, weight, targets, weights, bias) for step in (compiled, in_a_plain_step))
        torch.testing.assert_close(loss, plain)
        for a, b in zip(torch.autograd.grad(loss, leaves), torch.autograd.grad(plain, leaves), strict=True):
            torch.testing.assert_close(a, b)
        with torch.no_grad():
            torch.testing.assert_close(compiled(h, weight, targets, weights, bias), plain)


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_step_under_autocast_has_low_products_too() -> None:
    leaves, targets, weights = inputs(64, torch.float32)
    h, weight, bias = leaves
    compiled = torch.compile(in_a_step, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", torch.bfloat16):
        loss, plain = (step(h, weight, targets, weights, bias) for step in (compiled, in_a_step))
    torch.testing.assert_close(loss, plain, rtol=1e-5, atol=0.0)
    for a, b in zip(torch.autograd.grad(loss, leaves), torch.autograd.grad(plain, leaves), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_nothing_is_read_before_it_is_written(dtype: torch.dtype) -> None:
    h, weight, bias = (torch.randn(shape, dtype=dtype, requires_grad=True) for shape in ((100, 64), (200, 64), (200,)))
    targets, weights = torch.randint(200, (100,)), torch.ones(100)
    before = torch.are_deterministic_algorithms_enabled()
    try:
        torch.use_deterministic_algorithms(True)  # new memory holds NaN
        loss = cross_entropy(LogitProduct(h, weight, bias), targets, weights, chunk=20)
    finally:
        torch.use_deterministic_algorithms(before)
    assert all(part.isfinite().all() for part in (loss, *torch.autograd.grad(loss, (h, weight, bias))))


def test_a_few_chunks_of_half_precision_add_up_as_well_as_three_roundings() -> None:
    slope, x = torch.randn(8, 64, 300, dtype=torch.bfloat16), torch.randn(8, 64, 32, dtype=torch.bfloat16)
    total = torch.full((300, 32), torch.nan, dtype=torch.bfloat16)
    for i in range(8):
        _add_product(total, slope[i].T, x[i], first=i == 0)
    exact = torch.einsum("btv,btd->vd", slope.double(), x.double())
    assert (total - exact).norm() < 3 * (exact.bfloat16() - exact).norm()


def test_many_chunks_and_mixed_precision_add_up_in_single() -> None:
    half, single = torch.randn(4, 3, dtype=torch.bfloat16), torch.randn(4, 3)
    cases, dtypes = ((half, half.repeat(16, 1)), (half, half.repeat(17, 1)), (single, half), (half, single)), []
    for weight, h in cases:
        tokens = h, torch.zeros(len(h), dtype=torch.long), torch.ones(len(h))
        dtypes.append(_in_chunks(*tokens, weight, None, 4, _How(0.0, 0.0, learns=True))[2].dtype)
    assert dtypes == [torch.bfloat16, torch.float32, torch.float32, torch.float32]


def test_its_products_are_counted() -> None:
    (h, weight, _), targets, weights = inputs()
    with FlopCounterMode(display=False) as counter:
        cross_entropy(LogitProduct(h, weight), targets, weights).backward()
    assert counter.get_total_flops() == 3 * 2 * N * D * V


def test_targets_of_weight_0_may_be_anything_where_rows_stay() -> None:
    h, weight, weights = torch.randn(6, 4), torch.randn(9, 4), torch.tensor([1.0, 0.0, 2.0, 0.0, 0.5, 1.0])
    targets = torch.randint(9, (6,))
    odd, how = targets.masked_fill(weights == 0, -100), _How(0.1, 0.01, learns=True)
    found, wanted = (_in_chunks(h, some, weights, weight, None, 4, how) for some in (odd, targets))
    assert all(one.equal(two) for one, two in zip(found[:3], wanted[:3], strict=True))


def capped_loss(table: Tensor, sizes: list[int]) -> Callable[..., Tensor]:
    """The loss of a head whose scores are not a product with a table alone; `sizes`: tokens of each call."""

    def loss(h: Tensor, frame: Frame, targets: Tensor, weight: Tensor, smoothing: float, z: float) -> Tensor:
        sizes.append(targets.numel())
        scores = (h @ table.T).tanh().flatten(0, 1)
        each = F.cross_entropy(scores, targets.flatten(), reduction="none", label_smoothing=smoothing)
        return (weight.flatten() * (each + z * scores.logsumexp(-1).square())).sum()

    return loss


@pytest.mark.parametrize("room", [1, 5 * V, 1000 * V])
def test_a_loss_in_chunks_is_that_of_all_tokens(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "_SCORES", room)
    (h, table, _), targets, weights = inputs()
    sizes: list[int] = []
    tokens = h[None], Frame(), targets[None], weights[None], 0.1, 0.01
    mine = loss_in_chunks(capped_loss(table, sizes), V, *tokens)
    tokens_in_all, most = int((weights > 0).sum()), max(1, room // V)
    assert sizes == [min(most, tokens_in_all - start) for start in range(0, tokens_in_all, most)]
    whole = capped_loss(table, [])(*tokens)
    torch.testing.assert_close(mine, whole)
    for a, b in zip(*(torch.autograd.grad(loss, (h, table)) for loss in (mine, whole)), strict=True):
        torch.testing.assert_close(a, b)


def test_a_loss_in_several_chunks_keeps_no_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    (h, table, _), targets, weights = inputs()
    tokens = h[None], Frame(), targets[None], weights[None], 0.0, 0.0
    kept: dict[int, list[torch.Size]] = {}
    for room in (5 * V, 1000 * V):  # several chunks, one chunk
        monkeypatch.setattr(losses, "_SCORES", room)
        shapes = kept.setdefault(room, [])
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x, shapes=shapes: shapes.append(x.shape) or x, lambda x: x
        ):
            loss_in_chunks(capped_loss(table, []), V, *tokens)
    with_scores = {room: any(V in shape for shape in shapes) for room, shapes in kept.items()}
    assert with_scores == {5 * V: False, 1000 * V: True}


def test_a_loss_in_chunks_of_no_tokens_is_zero() -> None:
    (h, table, _), targets, weights = inputs()
    loss = loss_in_chunks(capped_loss(table, []), V, h[None], Frame(), targets[None], 0 * weights[None], 0.0, 0.0)
    assert loss == 0 and not any(gradient.any() for gradient in torch.autograd.grad(loss, (h, table)))
