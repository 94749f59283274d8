"""Every mask rule against its written-out definition, and what it lets through a stack of layers."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

from anyformer.core import Call, Causal, Frame, Full, Marks, MaskRule, ReadingMarks, Site, decode, initialise
from anyformer.core.masks import dense
from anyformer.errors import SpecError
from anyformer.ops.attention.attend import dispatch
from anyformer.ops.attention.blocked import plan
from anyformer.ops.attention.call import AttentionCall
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.masks.block_local import BlockLocal
from anyformer.parts.masks.dilated import Dilated
from anyformer.parts.masks.fixed import Fixed
from anyformer.parts.masks.global_tokens import GlobalTokens
from anyformer.parts.masks.prefix import Prefix
from anyformer.parts.masks.random_blocks import RandomBlocks
from anyformer.parts.masks.random_keys import RandomKeys
from anyformer.parts.masks.strided import Strided
from anyformer.parts.masks.window import Window
from anyformer.parts.mixers.attention import Attention, AttentionPart

BIG_BIRD = Window(size=2, block=64) | GlobalTokens(tokens=1, block=64) | RandomBlocks(count=3, block=64)
row = pytest.mark.row
DEFINITIONS = [
    pytest.param(Window(size=3), lambda i, j: abs(i - j) <= 2, marks=row("XF-03")),
    pytest.param(Window(size=2, block=3), lambda i, j: abs(i // 3 - j // 3) <= 1, marks=row("XF-06")),
    pytest.param(BlockLocal(size=5), lambda i, j: i // 5 == j // 5, marks=row("SUM-07")),
    pytest.param(Strided(stride=4), lambda i, j: abs(i - j) < 4 or (i - j) % 4 == 0, marks=row("XF-09")),
    pytest.param(Fixed(size=5, summaries=2), lambda i, j: i // 5 == j // 5 or j % 5 in (3, 4), marks=row("XF-09")),
    pytest.param(Dilated(size=3, step=2), lambda i, j: i - j in (-4, -2, 0, 2, 4), marks=row("XF-09")),
    pytest.param(GlobalTokens(tokens=2), lambda i, j: i in (0, 1) or j in (0, 1), marks=row("XF-04")),
    pytest.param(GlobalTokens(tokens=2, block=3), lambda i, j: i < 6 or j < 6, marks=row("XF-04")),
    pytest.param(Prefix(), lambda i, j: j <= i),
]
RANDOM = [RandomBlocks(count=2, block=3), RandomKeys(count=2), RandomKeys(count=3, length=36, block=3)]
RULES = [*(case.values[0] for case in DEFINITIONS), *RANDOM]


def built(rule: MaskRule | None, causal: bool, dim: int = 8) -> AttentionPart:
    part = Attention(heads=2, mask=rule).build(Site(dim=dim, causal=causal))
    initialise(part, NormalInit(deviation=0.5), seed=0)
    return part


def reach(rule: MaskRule, layers: int, length: int, causal: bool) -> Tensor:
    """[t s]: whether output t of a residual stack feels input s, by gradients."""
    part, x = built(rule, causal), torch.randn(1, length, 8)

    def stack(x: Tensor) -> Tensor:
        for _ in range(layers):
            x = x + part(x, Frame()).y
        return x.sum(-1)[0]

    gradient = torch.autograd.functional.jacobian(stack, x)  # [t 1 s d]
    return gradient.abs().sum((1, 3)) > 0


@row("SUM-04", clause="local attention equals a block-diagonal mask")
@row(
    "SUM-07",
    clause=(
        "sequence cut into blocks of equal length, attention within a block",
        "equals full attention under a block-diagonal mask",
    ),
)
@row("XF-03", clause="query i sees the keys j with |i - j| <= w")
@row(
    "XF-04",
    clause=("g tokens attend to all", "g tokens are attended by all", "the mask shows g full rows and g full columns"),
)
@row(
    "XF-09",
    clause=(
        "the strided mask of the Sparse Transformer fits its definition",
        "the fixed mask of the Sparse Transformer fits its definition",
    ),
)
@pytest.mark.parametrize(("rule", "sees"), DEFINITIONS)
def test_a_rule_is_its_definition(rule: MaskRule, sees: Callable[[int, int], bool]) -> None:
    assert dense(rule, 17, 17).tolist() == [[bool(sees(i, j)) for j in range(17)] for i in range(17)]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize(("q_len", "k_len"), [(1, 1), (16, 16), (1, 16), (5, 16), (20, 23), (37, 37)])
def test_pairs_counts_the_written_out_mask(rule: MaskRule, q_len: int, k_len: int) -> None:
    assert rule.pairs(q_len, k_len) == int(dense(rule, q_len, k_len).sum())


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_rule_serves_flex_attention_as_it_is(rule: MaskRule) -> None:
    mask = create_block_mask(
        lambda _b, _h, q, k: rule.allows(Marks(q), Marks(k)), None, None, 64, 64, device="cpu", BLOCK_SIZE=1
    )
    assert torch.equal(mask.to_dense()[0, 0].bool(), dense(rule, 64, 64))


@row("SUM-07", clause="equals full attention under a block-diagonal mask")
@row("XF-02", clause="the softmax of query i runs over an allowed set S(i) of keys only")
@row("XF-03", clause="equals dense attention under a banded mask")
@pytest.mark.parametrize("rule", [rule & Causal() for rule in RULES[: -len(RANDOM)]], ids=str)
def test_sparse_attention_is_dense_attention_with_minus_infinity(rule: MaskRule) -> None:
    q, k, v = torch.randn(3, 2, 20, 2, 4)
    marks = Marks(torch.arange(20)[None])
    scores = torch.einsum("bthc,bshc->bhts", q, k) * 0.5
    weights = scores.masked_fill(~dense(rule, 20, 20), -math.inf).softmax(-1)
    expected = torch.einsum("bhts,bshc->bthc", weights, v)
    y = dispatch(q, k, v, AttentionCall(rule, marks, marks, plain=True), scale=0.5)
    torch.testing.assert_close(y, expected, atol=1e-6, rtol=1e-5)


@row("XF-02")
def test_the_cost_is_the_number_of_allowed_pairs() -> None:
    call = Call(batch=2, length=64)
    full, sparse = (built(rule, causal=False).core_flops(call)[0] for rule in (None, Strided(stride=8)))
    assert sparse * 64 * 64 == full * int(dense(Strided(stride=8), 64, 64).sum())


@row("XF-03", clause="the receptive field of L layers is L w")
@pytest.mark.parametrize("causal", [True, False])
def test_a_window_reaches_layers_times_its_width(causal: bool) -> None:
    distance = torch.arange(20)[:, None] - torch.arange(20)
    expected = (distance <= 3 * 2) & (distance >= 0) if causal else distance.abs() <= 3 * 2
    assert torch.equal(reach(Window(size=3), layers=3, length=20, causal=causal), expected)


@row("XF-04", clause="information reaches all positions within 2 layers")
def test_global_tokens_carry_anything_anywhere_in_two_layers() -> None:
    rule = GlobalTokens(tokens=1) | Window(size=1)
    assert not reach(rule, layers=1, length=12, causal=False).all()
    assert reach(rule, layers=2, length=12, causal=False).all()


@row("XF-05")
@pytest.mark.parametrize("count", [1, 3, 5])
def test_a_block_picks_exactly_count_earlier_blocks_one_of_each_stretch(count: int) -> None:
    links = dense(RandomBlocks(count=count, block=1, seed=4), 40, 40)
    for n in range(40):
        picked = links[n, :n].nonzero()[:, 0].tolist()
        assert len(picked) == min(count, n)
        edges = [s * n // min(count, n) for s in range(min(count, n) + 1)] if n else []
        assert all(low <= place < high for low, place, high in zip(edges, picked, edges[1:], strict=False))


@row("XF-05")
def test_random_links_go_by_whole_blocks_in_both_directions() -> None:
    links, whole = (dense(RandomBlocks(count=2, block=size), n, n) for size, n in ((1, 15), (4, 60)))
    assert torch.equal(links, links.T)
    assert not links.diagonal().any()
    assert torch.equal(whole, links.repeat_interleave(4, 0).repeat_interleave(4, 1))


@row("XF-05", clause="the same seed gives the same keys")
def test_random_links_depend_on_the_seed_and_on_nothing_else() -> None:
    one, again, other = (dense(RandomBlocks(count=2, block=1, seed=seed), 64, 64) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert (one != other).sum() > 64
    assert torch.equal(one[:30, :30], dense(RandomBlocks(count=2, block=1, seed=1), 30, 30))
    narrow = Marks(torch.arange(64, dtype=torch.int32))
    assert torch.equal(RandomBlocks(count=2, block=1, seed=1).allows(narrow.as_queries(), narrow.as_keys()), one)


@row("XF-09", clause="the fixed mask of the Sparse Transformer fits its definition")
def test_the_last_tokens_of_a_block_carry_it_to_any_later_token_in_two_layers() -> None:
    later = torch.ones(16, 16).tril().bool()
    assert not torch.equal(reach(Fixed(size=4, summaries=1), layers=1, length=16, causal=True), later)
    assert torch.equal(reach(Fixed(size=4, summaries=1), layers=2, length=16, causal=True), later)


def test_patterns_that_do_not_fit_are_refused() -> None:
    with pytest.raises(SpecError, match="summaries=6 must be at most size=5"):
        Fixed(size=5, summaries=6)
    with pytest.raises(SpecError, match="multiple of block=4"):
        RandomKeys(length=10, block=4)
    with pytest.raises(SpecError, match="fewer than count=3 blocks"):
        RandomKeys(length=8, block=4)


@row("XF-05")
def test_random_picks_are_spread_evenly() -> None:
    links = dense(RandomBlocks(count=1, block=1), 2000, 2000).tril()
    place = (links.nonzero()[:, 1] + 0.5) / torch.arange(1, 2000)  # where in 0..n-1 block n looked
    shares = torch.histc(place, bins=10, min=0.0, max=1.0) / 2000
    assert (shares - 0.1).abs().max() < 0.03  # four standard deviations


@row("XF-05", clause=("each query attends to r random keys", "each row has exactly r random keys"))
@pytest.mark.parametrize("count", [1, 3, 7])
@pytest.mark.parametrize("block", [1, 4])
def test_a_query_sees_exactly_count_random_keys(count: int, block: int) -> None:
    encoder = dense(RandomKeys(count=count, length=40 * block, block=block, seed=4), 40 * block, 40 * block)
    assert encoder.sum(1).tolist() == [count * block] * (40 * block)
    decoder = dense(RandomKeys(count=count, block=block, seed=4), 40 * block, 40 * block)
    assert decoder.sum(1).tolist() == [min(count, i // block) * block for i in range(40 * block)]
    assert not decoder.triu().any()
    assert all((mask != mask.T).any() for mask in (encoder, decoder)), "a key need not see its query"


@row("XF-05", clause="the same seed gives the same keys")
@pytest.mark.parametrize("length", [None, 64])
def test_random_keys_depend_on_the_seed_and_on_nothing_else(length: int | None) -> None:
    one, again, other = (dense(RandomKeys(count=2, length=length, seed=seed), 64, 64) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert (one != other).sum() > 64
    assert torch.equal(one[:30, :30], dense(RandomKeys(count=2, length=length, seed=1), 30, 30))


@row("XF-05", clause="each query attends to r random keys")
def test_random_keys_are_spread_evenly_over_both_sides() -> None:
    picked = dense(RandomKeys(count=2, length=1000), 1000, 1000).nonzero()[:, 1].float()
    shares = torch.histc(picked, bins=10, min=0, max=1000) / 2000
    assert (shares - 0.1).abs().max() < 0.03  # more than four standard deviations


@row("XF-06")
def test_big_bird_is_window_and_global_and_random_blocks() -> None:
    mask = dense(BIG_BIRD, 640, 640)
    blocks = mask[::64, ::64]
    random = dense(RandomBlocks(count=3, block=1), 10, 10)
    expected = [[abs(i - j) <= 1 or i == 0 or j == 0 or bool(random[i, j]) for j in range(10)] for i in range(10)]
    assert blocks.tolist() == expected
    assert torch.equal(mask, blocks.repeat_interleave(64, 0).repeat_interleave(64, 1))
    assert decode(MaskRule, BIG_BIRD.to_dict()) == BIG_BIRD


@row("XF-06")
def test_the_cost_of_big_bird_grows_linearly() -> None:
    assert 2 + math.log2(plan(BIG_BIRD.text, 4096).density / plan(BIG_BIRD.text, 2048).density) < 1.3
    assert math.log2(BIG_BIRD.pairs(2048, 2048) / BIG_BIRD.pairs(1024, 1024)) < 1.3


@row("XF-09")
def test_a_dilated_window_of_step_one_is_a_window() -> None:
    assert torch.equal(dense(Dilated(size=4, step=1), 20, 20), dense(Window(size=4), 20, 20))


@row("SUM-04", clause="local attention equals a block-diagonal mask")
@row("SUM-07", clause="sequence cut into blocks of equal length, attention within a block")
def test_local_blocks_are_attention_in_each_block_alone() -> None:
    part, x = built(BlockLocal(size=6), causal=True), torch.randn(2, 20, 8)
    alone = [built(None, causal=True)(piece, Frame()).y for piece in x.split(6, dim=1)]
    torch.testing.assert_close(part(x, Frame()).y, torch.cat(alone, dim=1), atol=1e-6, rtol=1e-5)


def test_a_prefix_is_read_in_both_directions_row_by_row() -> None:
    lengths = [0, 3, 7]
    x = torch.zeros(3, 7, 1)
    marks = Frame(marks=ReadingMarks(prefix=torch.tensor(lengths))).marks_for(x)
    allowed = Prefix().allows(marks.as_queries(), marks.as_keys())
    assert allowed.tolist() == [[[j <= i or j < p for j in range(7)] for i in range(7)] for p in lengths]


def test_an_empty_prefix_is_causal_and_a_whole_one_full() -> None:
    x = torch.randn(2, 9, 8)
    y = built(Prefix(), causal=True)(x, Frame(marks=ReadingMarks(prefix=torch.tensor([0, 9])))).y
    causal, full = (built(None, causal)(x, Frame()).y for causal in (True, False))
    torch.testing.assert_close(y, torch.stack((causal[0], full[1])), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(built(Prefix(), causal=True)(x, Frame()).y, causal, atol=1e-6, rtol=1e-5)


def test_a_prefix_read_into_a_state_is_seen_by_what_follows() -> None:
    part, x, prefix = built(Prefix(), causal=True), torch.randn(2, 9, 8), torch.tensor([5, 5])
    together = part(x, Frame(marks=ReadingMarks(prefix=prefix))).y
    state, pieces, at = part.init_state(2, 9), [], 0
    with torch.no_grad():
        for piece in x.split([5, 1, 3], dim=1):
            positions = torch.arange(at, at + piece.shape[1]).expand(2, -1)
            y, state, *_ = part(piece, Frame(positions=positions, marks=ReadingMarks(prefix=prefix)), state)
            pieces.append(y)
            at += piece.shape[1]
    torch.testing.assert_close(torch.cat(pieces, dim=1), together, atol=1e-6, rtol=1e-5)


def test_rules_add_causal_in_a_causal_stack_unless_they_direct_themselves() -> None:
    assert built(Window(size=2), causal=True).rule == Window(size=2) & Causal()
    assert built(Window(size=2), causal=False).rule == Window(size=2)
    assert built(Prefix(), causal=True).rule == Prefix()
    assert built(None, causal=False).rule == Full()
