"""How a sequence becomes one vector."""

import pytest
import torch
from torch import Tensor

from anyformer.core import Frame, Pool, PoolSpec, Site, capture, initialise
from anyformer.parts.inits.xavier import Xavier
from anyformer.parts.pools.attention import AttentionPool
from anyformer.parts.pools.first import First
from anyformer.parts.pools.last import Last
from anyformer.parts.pools.max import Max
from anyformer.parts.pools.mean import Mean

DIM, LENGTHS = 32, torch.tensor([9, 4, 1])
RIGHT = torch.arange(9) < LENGTHS[:, None]
LEFT = RIGHT.flip(1)


def built(spec: PoolSpec) -> Pool:
    pool = spec.build(Site(dim=DIM))
    initialise(pool, Xavier(), 0)
    return pool


def padded_on_the_left(h: Tensor) -> Tensor:
    return torch.stack([row.roll(9 - int(length), 0) for row, length in zip(h, LENGTHS, strict=True)])


@pytest.mark.row("RNN-17", clause="equals attention with all scores equal (uniform softmax) to 1e-7")
@pytest.mark.parametrize("valid", [None, RIGHT, LEFT], ids=["all", "right", "left"])
def test_mean_pooling_is_attention_with_equal_scores(valid: Tensor | None) -> None:
    attention, h = built(AttentionPool()), torch.randn(3, 9, DIM)
    attention.query.weight.data.zero_()
    frame = Frame(valid=valid)
    torch.testing.assert_close(built(Mean())(h, frame), attention(h, frame), atol=1e-7, rtol=1e-6)


@pytest.mark.row("TSK-03", clause="sentence vector is the mean over tokens or the final token's")
@pytest.mark.row("RNN-17", clause="the mean of the states with padding left out")
def test_the_mean_is_over_the_tokens_that_exist() -> None:
    h = torch.randn(3, 9, DIM)
    expected = torch.stack([row[: int(length)].mean(0) for row, length in zip(h, LENGTHS, strict=True)])
    torch.testing.assert_close(built(Mean())(h, Frame(valid=RIGHT)), expected)


@pytest.mark.row("TSK-03", clause="sentence vector is the mean over tokens or the final token's")
@pytest.mark.row(
    "RNN-18",
    clause=(
        "decoder summary: the state at the last non-pad token",
        "encoder summary: the state at [CLS]",
        "the right index is taken in a padded batch",
    ),
)
def test_first_and_last_are_the_ends_of_what_exists() -> None:
    h, rows = torch.randn(3, 9, DIM), torch.arange(3)
    first, last = built(First()), built(Last())
    assert torch.equal(first(h, Frame()), h[:, 0]) and torch.equal(last(h, Frame()), h[:, 8])
    assert torch.equal(first(h, Frame(valid=RIGHT)), h[:, 0])
    assert torch.equal(last(h, Frame(valid=RIGHT)), h[rows, LENGTHS - 1])
    assert torch.equal(first(h, Frame(valid=LEFT)), h[rows, 9 - LENGTHS])
    assert torch.equal(last(h, Frame(valid=LEFT)), h[:, 8])


@pytest.mark.row("RNN-18", clause="left and right padding give the same summary")
@pytest.mark.parametrize("spec", [First(), Last(), Max(), Mean(), AttentionPool()], ids=lambda spec: spec.kind)
def test_the_side_of_the_padding_does_not_matter(spec: PoolSpec) -> None:
    pool, h = built(spec), torch.randn(3, 9, DIM)
    right, left = pool(h, Frame(valid=RIGHT)), pool(padded_on_the_left(h), Frame(valid=LEFT))
    torch.testing.assert_close(left, right)
    torch.testing.assert_close(pool(h[1:2, :4], Frame()), right[1:2])


@pytest.mark.row(
    "TSK-01",
    clause=(
        "r_i = v . h_i with one learned vector v in R^h",
        "a = softmax(r)",
        "pooled vector equals the equation computed by hand",
    ),
)
def test_attention_pooling_is_its_equation_and_shows_its_weights() -> None:
    pool, h = built(AttentionPool()), torch.randn(3, 9, DIM)
    with capture(pool) as seen:
        y = pool(h, Frame(valid=RIGHT))
    (weights,) = seen["pattern"]
    for row, length in enumerate(LENGTHS.tolist()):
        alpha = (h[row, :length] @ pool.query.weight[0]).softmax(0)
        torch.testing.assert_close(weights[row], torch.cat((alpha, torch.zeros(9 - length))))
        torch.testing.assert_close(y[row], (alpha[:, None] * h[row, :length]).sum(0))


@pytest.mark.parametrize("spec", [Mean(), AttentionPool()], ids=lambda spec: spec.kind)
def test_a_row_without_tokens_gives_zeros(spec: PoolSpec) -> None:
    y = built(spec)(torch.randn(2, 9, DIM), Frame(valid=torch.zeros(2, 9, dtype=torch.bool)))
    assert torch.equal(y, torch.zeros(2, DIM))


def test_the_maximum_is_over_the_tokens_that_exist() -> None:
    h, valid = torch.randn(2, 6, DIM), torch.arange(6) < torch.tensor([[4], [0]])
    pooled = Max().build(Site(dim=DIM))(h, Frame(valid=valid))
    assert torch.equal(pooled[0], h[0, :4].amax(0)) and not pooled[1].any()
