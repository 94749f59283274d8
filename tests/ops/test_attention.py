"""Every path of attention against its definition, forward and backward, and what the definition promises."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from anyformer.core import Causal, Full, Marks, MaskRule
from anyformer.core.masks import Band, dense
from anyformer.ops.attention.attend import dispatch
from anyformer.ops.attention.blocked import attend_blocked, plan, prefers_blocks
from anyformer.ops.attention.call import AttentionCall, attend_loop, attention_weights, weighted_sum
from anyformer.parts.masks.block_local import BlockLocal
from anyformer.parts.masks.dilated import Dilated
from anyformer.parts.masks.global_tokens import GlobalTokens
from anyformer.parts.masks.random_blocks import RandomBlocks
from anyformer.parts.masks.random_keys import RandomKeys
from anyformer.parts.masks.strided import Strided
from anyformer.parts.masks.window import Window

BIG_BIRD = Window(size=2, block=64) | GlobalTokens(tokens=1, block=64) | RandomBlocks(count=3, block=64)
SPARSE = [Window(size=40), BlockLocal(size=50), BIG_BIRD, Strided(stride=128), Dilated(size=9, step=3)]
RULES = [Full(), Causal(), Window(size=20) & Causal(), BlockLocal(size=50)]  # the last two go by blocks from 256 on
SCALE = 0.3
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.kind)
row = pytest.mark.row


def sight(rule: MaskRule, length: int, valid: Tensor | None = None, keys: int | None = None) -> AttentionCall:
    q, k = (Marks(torch.arange(n)[None]) for n in (length, keys or length))
    return AttentionCall(rule, q, k, valid, plain=keys in (None, length))


def inputs(length: int, batch: int = 2, heads: int = 2, groups: int = 2, channels: int = 4) -> list[Tensor]:
    return [torch.randn(batch, length, n, channels, requires_grad=True) for n in (heads, groups, groups)]


def some(length: int) -> Tensor:
    """Keys of which some are missing: the first of one row, a third of the other."""
    valid = torch.rand(2, length) > 0.3
    valid[0, 0], valid[1, -1] = False, True
    return valid


def explicit(q: Tensor, k: Tensor, v: Tensor, seen: AttentionCall) -> Tensor:
    return weighted_sum(attention_weights(q, k, seen, scale=SCALE), v)


def same(mine: Tensor, theirs: Tensor, leaves: list[Tensor]) -> None:
    """Equal values and gradients, all of them finite."""
    torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)
    probe = torch.randn_like(mine)
    for a, b in zip(*(torch.autograd.grad((y * probe).sum(), leaves) for y in (mine, theirs)), strict=True):
        assert a.isfinite().all()
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


@row("XF-02", clause="the softmax of query i runs over an allowed set S(i) of keys only")
@row("ATT-01", clause="sum_i softmax_i(score(q, k_i)) v_i")
@row("ATT-03", clause="equals the token-by-token loop")
@row("ATT-02")
@every_rule
@pytest.mark.parametrize("length", [1, 17, 65])
@pytest.mark.parametrize("padded", [False, True])
def test_the_matrices_give_what_the_loop_gives(rule: MaskRule, length: int, padded: bool) -> None:
    q, k, v = leaves = inputs(length, heads=2, groups=1, channels=3)
    seen = sight(rule, length, some(length) if padded else None)
    same(explicit(q, k, v, seen), attend_loop(q, k, v, seen, scale=SCALE), leaves)


@row("ATT-02", clause="all vectorised attention agrees with this slow loop to 1e-6")
@every_rule
@pytest.mark.parametrize("padded", [False, True])
def test_every_path_agrees_with_the_loop_to_a_millionth(rule: MaskRule, padded: bool) -> None:
    q, k, v = (x.detach().double() for x in inputs(130, groups=1))
    seen = sight(rule, 130, some(130) if padded else None)
    loop = attend_loop(q, k, v, seen, scale=SCALE)
    paths = [explicit(q, k, v, seen), dispatch(q, k, v, seen, scale=SCALE), attend_blocked(q, k, v, seen, SCALE)]
    paths.append(dispatch(q, k, v, seen._replace(plain=False), scale=SCALE))  # with a dense mask
    for y in paths:
        torch.testing.assert_close(y, loop, atol=1e-6, rtol=0)


@row("XF-02", clause="block-sparse result equals dense attention with a -inf mask")
@row("ATT-02")
@every_rule
@pytest.mark.parametrize("length", [1, 17, 63, 64, 65, 257, 300])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("groups", [2, 4])
def test_the_fast_path_gives_what_the_definition_gives(rule: MaskRule, length: int, padded: bool, groups: int) -> None:
    q, k, v = leaves = inputs(length, heads=4, groups=groups)
    seen = sight(rule, length, some(length) if padded else None)
    same(dispatch(q, k, v, seen, scale=SCALE), explicit(q, k, v, seen), leaves)


@pytest.mark.parametrize("rule", [Full(), Causal(), Window(size=5)], ids=lambda rule: rule.kind)
def test_queries_and_keys_may_differ_in_number(rule: MaskRule) -> None:
    (q, *_), (_, k, v) = inputs(7), inputs(12)
    seen = sight(rule, 7, some(12), keys=12)
    same(dispatch(q, k, v, seen, scale=SCALE), attend_loop(q, k, v, seen, scale=SCALE), [q, k, v])


@row("XF-13", clause="regularisers: dropout and attention dropout")
def test_dropout_keeps_the_mean() -> None:
    q, k, v = (x.detach() for x in inputs(12, batch=1))
    many = [x.expand(4000, -1, -1, -1) for x in (q, k, v)]
    y = dispatch(*many, sight(Causal(), 12), scale=SCALE, dropout=0.25)
    assert y.std(0).max() > 0.05
    torch.testing.assert_close(y.mean(0), explicit(q, k, v, sight(Causal(), 12))[0], atol=0.1, rtol=0.0)


@row("ATT-11", clause="a fully masked row gives 0, not NaN")
@pytest.mark.parametrize("length", [20, 300])
@every_rule
def test_a_query_without_keys_gets_zeros_and_finite_gradients(rule: MaskRule, length: int) -> None:
    valid = torch.ones(2, length, dtype=torch.bool)
    valid[0] = False
    q, k, v = leaves = inputs(length)
    y = dispatch(q, k, v, sight(rule, length, valid), scale=SCALE)
    assert y[0].abs().max() == 0.0 and y[1].abs().min() > 0.0
    same(y, explicit(q, k, v, sight(rule, length, valid)), leaves)


def test_a_long_sparse_call_goes_by_blocks_and_no_other() -> None:
    local = Window(size=40) & Causal()
    assert all(prefers_blocks(sight(rule, 600), 600) for rule in (local, Window(size=40), BlockLocal(size=50)))
    assert prefers_blocks(sight(BIG_BIRD, 2000), 2000)
    assert prefers_blocks(sight(local, 600, some(600)), 600)
    assert not prefers_blocks(sight(local, 200), 200)
    assert not any(prefers_blocks(sight(rule, 600), 600) for rule in (Full(), Causal(), Strided(stride=20)))
    assert not prefers_blocks(sight(local, 600)._replace(plain=False), 600)


@row("XF-02", clause="block-sparse result equals dense attention with a -inf mask")
@row("XF-03", clause="equals dense attention under a banded mask")
@row("XF-06", clause="equals the dense-mask reference, not HF's block_sparse in eval")
@pytest.mark.parametrize("rule", SPARSE, ids=lambda rule: rule.kind)
@pytest.mark.parametrize("causal", [False, True])
def test_blocks_give_what_the_dense_mask_gives(rule: MaskRule, causal: bool) -> None:
    rule = rule & Causal() if causal else rule
    q, k, v = leaves = inputs(600, heads=4, groups=2)
    seen = sight(rule, 600, some(600) if causal else None)
    y = attend_blocked(q, k, v, seen, SCALE)
    same(y, dispatch(q, k, v, seen._replace(plain=False), scale=SCALE), leaves)


WHOLE_BLOCKS = [
    *(BlockLocal(size=size) for size in (64, 128, 256, 512)),
    *(RandomKeys(count=count, block=64, length=1024) for count in (1, 2, 4)),
    Window(size=1, block=64),
    GlobalTokens(tokens=1, block=64),
]


@row("XF-02", clause="FLOPs are proportional to the number of allowed pairs of whole blocks")
@pytest.mark.parametrize("rule", WHOLE_BLOCKS, ids=repr)
def test_a_rule_of_whole_blocks_costs_four_operations_for_each_channel_of_each_allowed_pair(rule: MaskRule) -> None:
    (q, k, v), pairs = inputs(1024), int(dense(rule, 1024, 1024).sum())
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        attend_blocked(q, k, v, sight(rule, 1024), SCALE)
    assert counter.get_total_flops() == 4 * pairs * 2 * 2 * 4  # two texts, two heads, four channels
    assert pairs < 1024**2 * 0.6


@row("XF-02", clause="FLOPs are proportional to the number of allowed pairs of whole blocks")
def test_a_window_of_single_tokens_costs_the_blocks_that_it_touches() -> None:
    q, k, v = inputs(1024)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        attend_blocked(q, k, v, sight(Window(size=40), 1024), SCALE)
    assert counter.get_total_flops() == 4 * (16 * 3 * 64**2) * 2 * 2 * 4  # each of 16 blocks and its two neighbours


class Past(MaskRule):
    """A rule of a user's own that happens to be the causal triangle."""

    def allows(self, q: Marks, k: Marks) -> Tensor:
        return k.position <= q.position

    @property
    def band(self) -> Band:
        return Band(None, 0)


def test_a_rule_of_a_users_own_takes_the_causal_path_because_of_its_band() -> None:
    (q, k, v), seen = inputs(300), sight(Past(), 300)
    assert seen.is_causal() and not seen.is_sparse() and not seen.rule.is_full
    assert dispatch(q, k, v, seen, scale=SCALE).equal(dispatch(q, k, v, sight(Causal(), 300), scale=SCALE))


def test_a_plan_has_every_block_and_every_allowed_pair_once() -> None:
    inside = torch.arange(64)
    for rule in (*SPARSE, RandomBlocks(count=1, block=64) & Causal()):
        groups, found = plan(rule.text, 600).groups, torch.zeros(640, 640, dtype=torch.long)
        assert sorted(torch.cat([group.queries for group in groups]).tolist()) == list(range(10))
        for queries, keys, mask in groups:
            q_at, k_at = queries[:, None] * 64 + inside, (keys[..., None] * 64 + inside).flatten(1)
            found.index_put_((q_at[:, :, None], k_at[:, None]), mask.long(), accumulate=True)
        assert torch.equal(found[:600, :600], dense(rule, 600, 600).long())


def test_a_plan_made_without_gradients_serves_training() -> None:
    rule = Window(size=31)
    with torch.inference_mode():
        dispatch(*inputs(300), sight(rule, 300), scale=SCALE)
    q, k, v = inputs(300)
    dispatch(q, k, v, sight(rule, 300), scale=SCALE).sum().backward()
    assert v.grad is not None and v.grad.isfinite().all()


def test_a_window_is_one_group() -> None:
    assert len(plan((Window(size=256) & Causal()).text, 4096).groups) == 1


@pytest.mark.slow
@pytest.mark.compile
def test_blocks_compile_to_one_graph_for_each_length() -> None:
    torch._dynamo.reset()
    rule = BIG_BIRD & Causal()

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return dispatch(q, k, v, sight(rule, q.shape[1]), scale=SCALE)

    compiled = torch.compile(run, fullgraph=True, backend="eager")
    for length in (1100, 1200):  # from the second on dynamo would like the length to be a symbol
        assert prefers_blocks(sight(rule, length), length)
        q, k, v = leaves = inputs(length, batch=1)
        same(compiled(q, k, v), run(q, k, v), leaves)


@row("ATT-01", clause="the output shape does not depend on the number of pairs")
def test_attention_is_an_average_of_any_number_of_values() -> None:
    q = torch.randn(2, 3, 2, 4)
    for number in (1, 5, 50):
        k, v = torch.randn(2, 2, number, 2, 4)
        y = dispatch(q, k, v, sight(Full(), 3, keys=number), scale=SCALE)
        assert y.shape == q.shape
        low, high = (edge[:, None] for edge in (v.amin(1), v.amax(1)))
        assert ((y >= low - 1e-6) & (y <= high + 1e-6)).all()


@row("ATT-01", clause="the output lies in the convex hull of the values")
def test_in_no_direction_does_attention_leave_the_hull_of_the_values() -> None:
    q, k, v = (x.detach().double() for x in inputs(9))
    y, weights = (
        dispatch(q, k, v, sight(Full(), 9), scale=SCALE),
        attention_weights(q, k, sight(Full(), 9), scale=SCALE),
    )
    directions = torch.randn(200, 4, dtype=torch.float64)
    along, furthest = y @ directions.T, (v @ directions.T).amax(1, keepdim=True)  # every half-space around the values
    assert (along <= furthest + 1e-9).all()
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    torch.testing.assert_close(y, torch.einsum("bhts,bshc->bthc", weights, v))


@row("RNN-19", clause="orthonormal keys retrieve exactly like a dict")
def test_orthonormal_keys_give_back_their_values_as_a_dict_does() -> None:
    keys = torch.linalg.qr(torch.randn(16, 16, dtype=torch.float64)).Q
    values, asked = torch.randn(16, 16, dtype=torch.float64), torch.randint(16, (40,))
    table = {tuple(key.tolist()): value for key, value in zip(keys, values, strict=True)}
    expected = torch.stack([table[tuple(key.tolist())] for key in keys[asked]])
    q, k, v = (x[None, :, None] for x in (keys[asked], keys, values))
    y = dispatch(q, k, v, sight(Full(), 40, keys=16), scale=1000.0)[0, :, 0]  # exp(-1000) is 0
    assert torch.equal(y, expected)


@row("ATT-01", clause="permuting the (k_i, v_i) pairs leaves the output unchanged")
@row("ATT-12", clause="a query looks values up by their keys: a content-addressed memory")
def test_attention_does_not_depend_on_the_order_of_keys_with_their_values() -> None:
    q, k, v = (x.detach() for x in inputs(9))
    order = torch.randperm(9)
    y, again = (dispatch(q, a, b, sight(Full(), 9), scale=SCALE) for a, b in ((k, v), (k[:, order], v[:, order])))
    torch.testing.assert_close(y, again)


@row("ATT-01", clause="sum_i softmax_i(score(q, k_i)) v_i")
@row("ATT-03", clause="unscaled equals F.scaled_dot_product_attention(scale=1.0)")
@row("ATT-08", clause="equals F.scaled_dot_product_attention(is_causal=True)")
@row("RNN-19", clause="soft: softmax(q K / tau) V")
@row("ATT-04", clause="equals F.scaled_dot_product_attention to 1e-6")
@pytest.mark.parametrize("scale", [1.0, 0.25])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_torchs_own(scale: float, causal: bool) -> None:
    q, k, v = (x.detach().double() for x in inputs(33, channels=16))
    seen = sight(Causal() if causal else Full(), 33)
    given = {} if scale == 16**-0.5 else {"scale": scale}  # torch's own is that of sixteen channels
    expected = F.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), is_causal=causal, **given
    ).transpose(1, 2)
    written_out = weighted_sum(attention_weights(q, k, seen, scale=scale), v)
    torch.testing.assert_close(written_out, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(dispatch(q, k, v, seen, scale=scale), expected, atol=1e-6, rtol=0)


@row("ATT-04", clause="sampled Var(q.k) / d_k in [0.95, 1.05], entries iid mean 0 var 1")
def test_a_dot_product_varies_with_the_number_of_channels() -> None:
    for channels in (16, 64, 256):
        q, k = torch.randn(2, 20_000, channels)
        assert 0.95 < (q * k).sum(-1).var() / channels < 1.05


@row(
    "ATT-04",
    clause=(
        "unscaled: the softmax entropy goes to 0 as d_k grows",
        "unscaled: the gradient norm collapses as d_k grows",
        "scaled: neither entropy nor gradient norm collapses",
    ),
)
def test_only_the_scale_keeps_a_wide_softmax_soft() -> None:
    def softness(channels: int, scale: float) -> tuple[float, float]:
        """Entropy of the weights, and the trace of the softmax's Jacobian through which they learn."""
        q, k = torch.randn(2, 8, 32, 1, channels)
        weights = attention_weights(q, k, sight(Full(), 32), scale=scale)
        return torch.special.entr(weights).sum(-1).mean().item(), (weights * (1 - weights)).sum(-1).mean().item()

    hard, soft = softness(4096, 1.0), softness(4096, 4096**-0.5)
    narrow = softness(16, 0.25)
    assert hard[0] < 0.1 and hard[1] < 0.05
    assert soft == pytest.approx(narrow, rel=0.05)


@row(
    "ATT-09",
    clause=("each step recomputes attention on its prefix only: O(T) calls", "equals the masked parallel version"),
)
def test_recomputing_every_prefix_gives_what_the_causal_mask_gives() -> None:
    q, k, v = (x.detach() for x in inputs(20))
    steps = [
        dispatch(q[:, i : i + 1], k[:, : i + 1], v[:, : i + 1], sight(Full(), 1, keys=i + 1), scale=SCALE)
        for i in range(20)
    ]
    torch.testing.assert_close(torch.cat(steps, dim=1), dispatch(q, k, v, sight(Causal(), 20), scale=SCALE))


@row(
    "ATT-13",
    clause=("for fixed attention weights the output is linear in V", "with A frozen f(a X + b Y) = a f(X) + b f(Y)"),
)
def test_for_given_weights_attention_is_linear_in_the_values() -> None:
    q, k, v = (x.detach() for x in inputs(20))
    weights, other = attention_weights(q, k, sight(Causal(), 20), scale=SCALE), torch.randn_like(v)
    mixed = weighted_sum(weights, 2.0 * v - 3.0 * other)
    torch.testing.assert_close(
        mixed, 2.0 * weighted_sum(weights, v) - 3.0 * weighted_sum(weights, other), atol=1e-5, rtol=1e-4
    )


def kept_bytes(run: Callable[..., Tensor], length: int) -> int:
    """What autograd keeps of one call, each storage once."""
    kept: dict[int, Tensor] = {}

    def pack(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        y = run(*inputs(length))
    assert y.requires_grad
    return sum(x.untyped_storage().nbytes() for x in kept.values())


@row("XF-03", clause="memory grows with T at slope 1.0")
@row("XF-16", clause="memory grows with slope 2.0 +- 0.15 at large n")
@row(
    "ATT-14",
    clause=(
        "naive: memory grows with T at an exponent of about 2.0",
        "chunked or flash: memory grows with T at an exponent of about 1.0",
    ),
)
def test_written_out_weights_cost_the_square_of_the_length_and_fused_ones_do_not() -> None:
    def exponent(rule: MaskRule, run: Callable[..., Tensor]) -> float:
        small, large = (kept_bytes(lambda *x, n=n: run(*x, sight(rule, n)), n) for n in (512, 1536))
        return math.log(large / small, 3)

    def fused(q: Tensor, k: Tensor, v: Tensor, seen: AttentionCall) -> Tensor:
        return dispatch(q, k, v, seen, scale=SCALE)

    assert 1.9 < exponent(Causal(), explicit) < 2.1
    assert 0.95 < exponent(Causal(), fused) < 1.05
    assert 0.9 < exponent(Window(size=64) & Causal(), fused) < 1.1
