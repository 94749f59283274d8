"""Multi-head attention as a part: the recipe token by token, heads, masks, padding."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core import Frame, Memory, PartSpec, Site, capture, decode, initialise
from anyformer.errors import SpecError
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.combine.cross import Cross
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.mixers.attention import Attention, AttentionPart
from anyformer.parts.norms.batch import BatchNorm
from anyformer.parts.norms.rms import RMSNorm

DIM = 12
row = pytest.mark.row


def built(spec: PartSpec, causal: bool = False, dim: int = DIM) -> AttentionPart:
    part = spec.build(Site(dim=dim, causal=causal))
    initialise(part, NormalInit(deviation=0.4), seed=0)
    assert isinstance(part, AttentionPart)
    return part


def projections(part: AttentionPart) -> tuple[Tensor, ...]:
    """W_q, W_k, W_v, each [h c d]."""
    return tuple(w.unflatten(0, (-1, part.c)) for w in part.qkv.weight.detach().split(part.qkv.widths))


@row(
    "ATT-02",
    clause=(
        "q_i = W_q x_i, k_i = W_k x_i, v_i = W_v x_i for each token",
        "alpha_ij = exp(e_ij) / sum_k exp(e_ik)",
        "out_i = sum_j alpha_ij v_j",
    ),
)
@row("ATT-04", clause="softmax(Q K^T / sqrt(d_k)) V")
@row("ATT-05", clause="Z = [head_1 .. head_H] W_o")
@row("ATT-06", clause="Z = concat(heads) W_o")
@row("ATT-07", clause="queries, keys and values all come from one sequence")
@row("ATT-08", clause="score q_i . k_j / sqrt(d_k) for j <= i, -inf for j > i")
@row("RNN-20", clause="unmasked: y_t = f(x_1..x_T) with the same f and weights at each t")
@pytest.mark.parametrize("causal", [False, True])
def test_the_part_follows_the_recipe_token_by_token(causal: bool) -> None:
    part, x = built(Attention(heads=3), causal), torch.randn(5, DIM)
    w_q, w_k, w_v = projections(part)
    expected = torch.zeros(5, DIM)
    for i in range(5):
        heads = []
        for h in range(3):
            seen = range(i + 1 if causal else 5)
            exps = [math.exp((w_q[h] @ x[i]) @ (w_k[h] @ x[j]) / math.sqrt(4)) for j in seen]
            heads.append(sum(e / sum(exps) * (w_v[h] @ x[j]) for e, j in zip(exps, seen, strict=True)))
        expected[i] = part.out.weight @ torch.cat(heads)
    torch.testing.assert_close(part(x[None], Frame()).y[0], expected, atol=1e-5, rtol=1e-4)


@row("ATT-02", clause="e_ij = q_i . k_j")
@row(
    "ATT-03",
    clause=(
        "Q = X W_q, K = X W_k, V = X W_v; output softmax(Q K^T) V, row by row",
        "the unscaled form can be selected (scale = 1)",
        "unscaled equals F.scaled_dot_product_attention(scale=1.0)",
    ),
)
def test_unscaled_attention_is_softmax_of_the_plain_products() -> None:
    part, x = built(Attention(heads=1, scale=1.0)), torch.randn(2, 7, DIM)
    w_q, w_k, w_v = (w[0] for w in projections(part))
    q, k, v = x @ w_q.T, x @ w_k.T, x @ w_v.T
    expected = (q @ k.mT).softmax(-1) @ v @ part.out.weight.T
    torch.testing.assert_close(part(x, Frame()).y, expected, atol=1e-6, rtol=1e-5)
    fused = F.scaled_dot_product_attention(q, k, v, scale=1.0) @ part.out.weight.T
    torch.testing.assert_close(part(x, Frame()).y, fused, atol=1e-6, rtol=1e-5)


@row("ATT-04", clause="softmax(Q K^T / sqrt(d_k)) V")
@row("ATT-05", clause=("each head is scaled attention on its own projections of X", "head width d_k = d / H"))
@row("ATT-06", clause="equals the sum of head_h W_o[h] over the heads to 1e-6")
def test_heads_are_attentions_of_their_own_whose_outputs_add_up() -> None:
    part, x = built(Attention(heads=3)).double(), torch.randn(2, 7, DIM, dtype=torch.float64)
    w_out = part.out.weight.unflatten(1, (3, 4))  # [d h c]
    expected = torch.zeros_like(x)
    for h, (w_q, w_k, w_v) in enumerate(zip(*projections(part), strict=True)):
        expected += F.scaled_dot_product_attention(x @ w_q.T, x @ w_k.T, x @ w_v.T) @ w_out[:, h].T
    torch.testing.assert_close(part(x, Frame()).y, expected, atol=1e-6, rtol=0)


@row("ATT-05", clause="4 d^2 parameters, 4 d more with biases")
@pytest.mark.parametrize("heads", [1, 2, 8])
def test_the_number_of_heads_does_not_change_the_number_of_weights(heads: int) -> None:
    part, biased = (Attention(heads=heads, bias=bias).build(Site(dim=64)) for bias in (False, True))
    assert sum(p.numel() for p in part.parameters()) == 4 * 64 * 64
    assert sum(p.numel() for p in biased.parameters()) == 4 * 64 * 64 + 4 * 64


def test_grouped_heads_are_heads_with_copied_keys_and_values() -> None:
    grouped, whole = built(Attention(heads=4, kv_heads=2), dim=16), built(Attention(heads=4), dim=16)
    w_q, w_k, w_v = projections(grouped)
    with torch.no_grad():
        copies = (w_q, w_k.repeat_interleave(2, 0), w_v.repeat_interleave(2, 0))
        whole.qkv.weight.copy_(torch.cat([w.flatten(0, 1) for w in copies]))
        whole.out.load_state_dict(grouped.out.state_dict())
    x = torch.randn(2, 9, 16)
    torch.testing.assert_close(grouped(x, Frame()).y, whole(x, Frame()).y, atol=1e-6, rtol=1e-5)


def test_queries_and_keys_can_be_normalised_over_the_channels_of_each_head() -> None:
    part, x = built(Attention(heads=3, qk_norm=RMSNorm(eps=1e-12))), 5 * torch.randn(2, 7, DIM)
    w_q, w_k, w_v = projections(part)
    q, k, v = (torch.einsum("btd,hcd->bhtc", x, w) for w in (w_q, w_k, w_v))
    q, k = (y / y.square().mean(-1, keepdim=True).sqrt() for y in (q, k))
    heads = (q @ k.mT / 2).softmax(-1) @ v
    expected = heads.transpose(1, 2).flatten(2) @ part.out.weight.T
    torch.testing.assert_close(part(x, Frame()).y, expected, atol=1e-5, rtol=1e-4)
    assert part.q_norm is not part.k_norm


@row("ATT-07", clause="without positions f(P x) = P f(x)")
@row("RNN-20", clause="unmasked: y_t = f(x_1..x_T) with the same f and weights at each t")
def test_permuting_the_tokens_permutes_the_outputs() -> None:
    part, x, order = built(Attention(heads=3)), torch.randn(2, 9, DIM), torch.randperm(9)
    torch.testing.assert_close(part(x[:, order], Frame()).y, part(x, Frame()).y[:, order], atol=1e-6, rtol=1e-5)


@row(
    "CLM-26",
    clause=(
        "gradients from y_t to x_t' exist through attention for t' <= t",
        "dy_t/dx_t' is exactly 0 for t' > t and non-zero for t' <= t",
    ),
)
@row("ATT-08", clause=("d out_i / d x_j is 0 for j > i", "d out_i / d x_j is non-zero for j <= i"))
def test_a_causal_output_has_gradients_to_its_past_and_to_nothing_else() -> None:
    part, x = built(Attention(heads=3), causal=True), torch.randn(1, 8, DIM)
    gradient = torch.autograd.functional.jacobian(lambda x: part(x, Frame()).y.sum(-1)[0], x)
    felt = gradient.abs().sum((1, 3)) > 0  # [t s]
    assert torch.equal(felt, torch.ones(8, 8, dtype=torch.bool).tril())


@row("ATT-08", clause=("j = i is kept: the first row is not all -inf", "row i has exactly i non-zero weights"))
def test_row_i_of_the_causal_weights_has_i_entries() -> None:
    part, x = built(Attention(heads=3), causal=True), torch.randn(2, 8, DIM)
    with capture(part) as seen:
        part(x, Frame())
    (weights,) = seen["pattern"]
    assert torch.equal((weights > 0).sum(-1), torch.arange(1, 9).expand(2, 3, -1))
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 8))


@row(
    "ATT-09",
    clause=("each step recomputes attention on its prefix only: O(T) calls", "equals the masked parallel version"),
)
def test_reading_every_prefix_anew_gives_the_causal_outputs() -> None:
    part, whole, x = built(Attention(heads=3), causal=True), built(Attention(heads=3)), torch.randn(2, 8, DIM)
    last = [whole(x[:, : i + 1], Frame()).y[:, -1:] for i in range(8)]
    torch.testing.assert_close(part(x, Frame()).y, torch.cat(last, dim=1), atol=1e-6, rtol=1e-5)


@row("ATT-11")
@pytest.mark.parametrize("causal", [False, True])
def test_a_padded_batch_equals_its_rows_alone(causal: bool) -> None:
    part, x, lengths = built(Attention(heads=3), causal), torch.randn(3, 8, DIM), [3, 8, 1]
    valid = torch.arange(8) < torch.tensor(lengths)[:, None]
    y = part(x, Frame(valid=valid)).y
    for i, length in enumerate(lengths):
        alone = part(x[i : i + 1, :length], Frame()).y[0]
        torch.testing.assert_close(y[i, :length], alone, atol=1e-6, rtol=1e-5)


@row("ATT-11", clause="a fully masked row gives 0, not NaN")
def test_a_row_of_padding_gives_zeros_and_finite_gradients() -> None:
    part, x = built(Attention(heads=3)), torch.randn(2, 8, DIM, requires_grad=True)
    valid = torch.tensor([[True] * 8, [False] * 8])
    y = part(x, Frame(valid=valid)).y
    assert y[1].abs().max() == 0.0
    y.square().sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()


@row(
    "ATT-10",
    clause=(
        "k_i = K h_i and v_i = V h_i come from the encoder outputs",
        "q_i = Q z_i comes from the decoder's self-attention output",
        "the vectors h_i and z_i have size d",
        "the score matrix is target x source, also for unequal lengths",
    ),
)
@row("ATT-14", clause="Q is T x D, K and V are S x D: a T x S score matrix for each head")
def test_cross_attention_asks_the_decoder_and_reads_the_encoder() -> None:
    part, x, source = built(Cross(part=Attention(heads=3)), causal=True), torch.randn(2, 5, DIM), torch.randn(2, 9, DIM)
    w_q = part.q.weight.unflatten(0, (3, 4))
    w_k, w_v = part.kv.weight.unflatten(0, (2, 3, 4))
    q, k, v = (torch.einsum("btd,hcd->bhtc", a, w) for a, w in ((x, w_q), (source, w_k), (source, w_v)))
    expected = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2) @ part.out.weight.T
    with capture(part) as seen:
        torch.testing.assert_close(part(x, Frame(memory=Memory(x=source))).y, expected, atol=1e-6, rtol=1e-5)
    assert seen["pattern"][0].shape == (2, 3, 5, 9)


@row(
    "ATT-13",
    clause=(
        "with A frozen f(a X + b Y) = a f(X) + b f(Y)",
        "a stack of attention only, A frozen, collapses to a single matrix",
    ),
)
def test_with_frozen_weights_stacked_attention_is_one_matrix() -> None:
    first, second = built(Attention(heads=3)), built(Attention(heads=2))
    with capture(first) as one, capture(second) as two:
        second(first(torch.randn(1, 5, DIM), Frame()).y, Frame())
    frozen = {id(first): one["pattern"][0], id(second): two["pattern"][0]}

    def stack(x: Tensor) -> Tensor:
        for part in (first, second):
            weights = frozen[id(part)]
            with capture(part, "pattern", edit=lambda _name, _value, weights=weights: weights):
                x = part(x, Frame()).y
        return x

    matrix = torch.autograd.functional.jacobian(stack, torch.zeros(1, 5, DIM)).reshape(5 * DIM, 5 * DIM)
    for x in torch.randn(3, 1, 5, DIM):
        torch.testing.assert_close(stack(x).flatten(), matrix @ x.flatten(), atol=1e-5, rtol=1e-4)


@row("ATT-13", clause="the feed-forward net is what breaks this linearity")
@pytest.mark.parametrize("activation", ["gelu", "relu", "identity"])
def test_between_attention_with_frozen_weights_only_a_bent_feed_forward_net_is_not_linear(activation: str) -> None:
    look, think = built(Attention(heads=3)), MLP(activation=activation).build(Site(dim=DIM))
    initialise(think, NormalInit(deviation=0.4), seed=0)
    weights = torch.rand(1, 3, 5, 5).softmax(-1)

    def layer(x: Tensor) -> Tensor:
        with capture(look, "pattern", edit=lambda _name, _value: weights):
            return look(think(look(x, Frame()).y, Frame()).y, Frame()).y

    x, y = torch.randn(2, 1, 5, DIM)
    bend = (layer(2 * x - 3 * y) - 2 * layer(x) + 3 * layer(y)).abs().max() / layer(x).abs().max()
    assert bend < 1e-5 if activation == "identity" else bend > 0.1


def test_looking_at_the_pattern_or_replacing_it_acts_on_the_output() -> None:
    part, x = built(Attention(heads=3)), torch.randn(2, 6, DIM)
    with capture(part, edit=lambda _name, value: torch.zeros_like(value)):
        assert part(x, Frame()).y.abs().max() == 0.0
    assert part(x, Frame()).y.abs().max() > 0.0


@pytest.mark.parametrize(
    ("table", "site", "says"),
    [
        ({"heads": 5}, Site(dim=12), "heads=5 must divide dim=12. Use 4 or 6, or give head_dim"),
        ({"heads": 6, "kv_heads": 4}, Site(dim=12), "multiple of kv_heads=4"),
        ({"heads": 4, "position": {"kind": "rope"}}, Site(dim=32, source="memory"), "takes no `position`"),
        ({"heads": 0}, Site(dim=12), "heads: must be at least 1"),
        ({"heads": 3, "qk_norm": BatchNorm().to_dict()}, Site(dim=12), "qk_norm: batch depends on other tokens"),
    ],
)
def test_what_cannot_be_is_refused_with_both_values(table: dict[str, object], site: Site, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        decode(PartSpec, {"kind": "attention", **table}).build(site)
