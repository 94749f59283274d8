"""Synthesizers: scores from each token alone or from a learned table, compared with slow loops and with attention."""

from itertools import product
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from anyformer.core import Frame, Marks, Site, capture, initialise, nbytes
from anyformer.errors import SpecError
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.mixers.synthesizer import (
    DenseScores,
    FactorizedRandomScores,
    RandomScores,
    Synthesizer,
    SynthesizerPart,
)
from anyformer.parts.positions.t5_bias import T5Bias
from anyformer.training import load

DIM, HEADS, CHANNELS, LONGEST, RANK = 12, 3, 4, 10, 2
Scores = Literal["dense", "random", "factorized_random"]
Combine = Literal["alone", "plus", "plus_alpha"]
every_score = pytest.mark.parametrize("scores", ["dense", "random", "factorized_random"])
every_table = pytest.mark.parametrize("scores", ["random", "factorized_random"])


def built(scores: Scores, combine: Combine = "alone", *, causal: bool = False, **options: Any) -> SynthesizerPart:
    spec = Synthesizer(heads=HEADS, scores=scores, combine=combine, **{"rank": RANK, **options})
    part = spec.build(Site(dim=DIM, causal=causal, max_len=LONGEST))
    initialise(part, NormalInit(deviation=0.4), seed=0)
    return part


def full_size(name: str) -> list[SynthesizerPart]:
    """The self-attention of all 12 + 12 layers of a preset, on the meta device."""
    model = load(f"vanilla-synthesizer-{name}").build(device="meta")
    return [module for module in model.modules() if isinstance(module, SynthesizerPart)]


def synthetic(part: SynthesizerPart, x: Tensor) -> Tensor:
    """Scores [#b h t t] before the softmax, without dot products."""
    q, marks = part.project(x).unflatten(-1, (-1, HEADS, CHANNELS))[:, :, 0], Marks(torch.arange(x.shape[1])[None])
    return part.scores.bias(q, q, marks, marks).dense()


def score_weights(part: SynthesizerPart) -> dict[str, Tensor]:
    """The weights of the synthetic scores by name, without those of the position bias."""
    return {name: weight for name, weight in part.scores.named_parameters() if not name.startswith("relative")}


def slow_score(part: SynthesizerPart, q: Tensor, h: int, i: int, j: int) -> float:
    """The synthetic score of token i, whose query is q, for token j in head h, number by number."""
    scores = part.scores
    if isinstance(scores, DenseScores):
        return sum(max(float(q[c]), 0.0) * float(scores.pi.weight[j, c]) for c in range(CHANNELS))
    if isinstance(scores, RandomScores):
        return float(scores.table.weight[i, h * LONGEST + j])
    assert isinstance(scores, FactorizedRandomScores)
    left, right = scores.row_table.weight[i], scores.column_table.weight[j]
    return sum(float(left[h * RANK + r] * right[h * RANK + r]) for r in range(RANK))


def slow_weights(part: SynthesizerPart, combine: Combine, x: Tensor) -> Tensor:
    """Attention weights [h t t] of one row of tokens [t d]: a loop over heads, queries and keys."""
    q, k = (x @ weight.T for weight in (part.project.weight[:DIM], part.project.weight[DIM : 2 * DIM]))
    share = 1.0 if part.scores.alpha is None else float(part.scores.alpha.sigmoid())
    weights = torch.zeros(HEADS, len(x), len(x))
    for h, i in product(range(HEADS), range(len(x))):
        head = slice(h * CHANNELS, (h + 1) * CHANNELS)
        row = torch.tensor([share * slow_score(part, q[i, head], h, i, j) for j in range(len(x))])
        if combine != "alone":
            row += (1.0 if combine == "plus" else 1 - share) * torch.stack([q[i, head] @ key[head] / 2 for key in k])
        visible = len(x) if part.rule.is_full else i + 1
        weights[h, i, :visible] = row[:visible].softmax(0)
    return weights


def matching_attention(part: SynthesizerPart, **options: Any) -> Tensor:
    """The output of attention for `tokens()`, with the projections and position biases of a synthesizer."""
    full = Attention(heads=HEADS, **options).build(Site(dim=DIM, causal=False))
    initialise(full, NormalInit(), seed=0)
    with torch.no_grad():
        full.qkv.weight.copy_(part.project.weight)
        full.out.weight.copy_(part.out.weight)
        if part.scores.relative is not None:
            full.position.load_state_dict(part.scores.relative.state_dict())
    y: Tensor = full(tokens(), Frame()).y
    return y


def tokens(length: int = 7, seed: int = 1) -> Tensor:
    return torch.randn(2, length, DIM, generator=torch.Generator().manual_seed(seed))


@pytest.mark.row("NAR-40", clause="scores are ReLU(q) W_pi with q = W_q x, d_kv to L = 512")
@pytest.mark.row("NAR-41", clause="scores are Q K^T plus the dense scores")
@pytest.mark.row("NAR-42", clause="scores are (1 - a) Q K^T + a dense, a = sigmoid(alpha)")
@pytest.mark.row("NAR-43", clause="scores are R1^T R2, both 16 x H x 512")
@pytest.mark.row("NAR-44", clause="scores are a learned table H x 512 x 512, without queries and keys")
@pytest.mark.row("NAR-45", clause="scores are Q K^T plus the learned table R")
@pytest.mark.row("NAR-46", clause="scores are (1 - a) Q K^T + a R, a = sigmoid(alpha)")
@every_score
@pytest.mark.parametrize("combine", ["alone", "plus", "plus_alpha"])
@pytest.mark.parametrize("causal", [False, True], ids=["both_ways", "causal"])
def test_attention_is_the_slow_loop(scores: Scores, combine: Combine, causal: bool) -> None:
    part, x = built(scores, combine, causal=causal), tokens()
    with torch.no_grad():
        if part.scores.alpha is not None:
            part.scores.alpha.fill_(0.7)  # a = 0.67, so that the two shares differ
        weights = torch.stack([slow_weights(part, combine, row) for row in x])
        values = part.project(x)[..., -DIM:].unflatten(-1, (HEADS, CHANNELS))
        expected = part.out(torch.einsum("bhts,bshc->bthc", weights, values).flatten(2))
        torch.testing.assert_close(part(x, Frame()).y, expected, atol=1e-6, rtol=1e-5)
        with capture(part) as seen:
            torch.testing.assert_close(part(x, Frame()).y, expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(seen["pattern"][0], weights, atol=1e-6, rtol=1e-5)


@pytest.mark.row("NAR-40", clause="no keys: only queries and values are projected")
@pytest.mark.row("NAR-44", clause="scores are a learned table H x 512 x 512, without queries and keys")
def test_only_dot_products_have_keys_and_tables_alone_have_no_queries() -> None:
    roles = {"dense": ["query", "value"], "random": ["value"], "factorized_random": ["value"]}
    for scores in ("dense", "random", "factorized_random"):
        alone, plus = built(scores), built(scores, "plus")
        assert alone.project.roles["weight"] == tuple((role, DIM) for role in roles[scores])
        assert plus.project.roles["weight"] == tuple((role, DIM) for role in ("query", "key", "value"))
        assert alone.project.weight.shape[0] == len(roles[scores]) * DIM


@pytest.mark.row("NAR-40", clause="no keys: only queries and values are projected")
@every_score
def test_the_cache_holds_keys_only_for_dot_products(scores: Scores) -> None:
    alone, plus = (built(scores, combine, causal=True).init_state(2, 8) for combine in ("alone", "plus"))
    assert alone.k.numel() == 0 and alone.v.shape == plus.k.shape == plus.v.shape == (2, 9, HEADS, CHANNELS)
    assert nbytes(plus) - nbytes(alone) == nbytes(plus.k)


@pytest.mark.row("NAR-40", clause="row i of the scores depends on no other token, by the Jacobian")
def test_a_row_of_dense_scores_depends_on_its_token_alone() -> None:
    part = built("dense")
    jacobian = torch.autograd.functional.jacobian(lambda x: synthetic(part, x)[0].sum(0), tokens()[:1])
    by_token = jacobian[:, :, 0].abs().amax(dim=(1, 3))  # [t t]: the row of the scores, the token
    assert torch.equal(by_token > 0, torch.eye(7, dtype=torch.bool))


@pytest.mark.row("NAR-41", clause="with W_pi = 0 it reduces to dot-product attention")
@pytest.mark.row("NAR-45", clause="with R = 0 it reduces to scaled dot-product attention")
@every_score
@pytest.mark.parametrize("options", [{}, {"scale": 1.0}, {"position": T5Bias(share="")}], ids=["", "scale", "position"])
def test_without_synthetic_scores_it_is_attention(scores: Scores, options: dict[str, Any]) -> None:
    part = built(scores, "plus", **options)
    expected = matching_attention(part, **options)
    assert (part(tokens(), Frame()).y - expected).abs().max() > 1e-2
    with torch.no_grad():
        for weight in score_weights(part).values():
            weight.zero_()
    torch.testing.assert_close(part(tokens(), Frame()).y, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.row("NAR-42", clause="alpha to -inf reduces to scaled dot-product attention")
@pytest.mark.row("NAR-46", clause="alpha to -inf reduces to scaled dot-product attention")
@every_score
def test_alpha_at_its_ends_leaves_one_of_the_two_scores(scores: Scores) -> None:
    part, alone = built(scores, "plus_alpha"), built(scores)
    assert part.scores.alpha is not None
    with torch.no_grad():
        part.scores.alpha.fill_(-torch.inf)
        torch.testing.assert_close(part(tokens(), Frame()).y, matching_attention(part), atol=1e-6, rtol=1e-5)
        part.scores.alpha.fill_(torch.inf)
        alone.scores.load_state_dict({name: w for name, w in part.scores.state_dict().items() if name != "alpha"})
        alone.out.load_state_dict(part.out.state_dict())
        kept = (
            [part.project.weight[:DIM], part.project.weight[-DIM:]]
            if scores == "dense"
            else [part.project.weight[-DIM:]]
        )
        alone.project.weight.copy_(torch.cat(kept))
        torch.testing.assert_close(part(tokens(), Frame()).y, alone(tokens(), Frame()).y, atol=1e-6, rtol=1e-5)


@pytest.mark.row("NAR-42", clause="alpha starts at 0, so a = 0.5")
@every_score
def test_alpha_starts_at_zero_so_that_both_scores_weigh_one_half(scores: Scores) -> None:
    part = built(scores, "plus_alpha")
    assert part.scores.alpha is not None and part.scores.alpha.item() == 0.0
    halved, plus = part.scores.weigh_keys(torch.ones(3)), built(scores, "plus")
    plus.load_state_dict({name: weight for name, weight in part.state_dict().items() if name != "scores.alpha"})
    assert torch.equal(halved, torch.full((3,), 0.5))
    torch.testing.assert_close(2 * synthetic(part, tokens()), synthetic(plus, tokens()))


@pytest.mark.row("NAR-42", clause="alpha gets a gradient")
@pytest.mark.row("NAR-46", clause="alpha gets a gradient")
@every_score
def test_alpha_gets_the_gradient_of_finite_differences(scores: Scores) -> None:
    part = built(scores, "plus_alpha").double()
    alpha, x = part.scores.alpha, tokens().double()
    assert alpha is not None
    part(x, Frame()).y.square().sum().backward()
    with torch.no_grad():
        above, below = (part(x, Frame()).y.square().sum() for _ in map(alpha.fill_, (1e-5, -1e-5)))
    assert alpha.grad is not None and alpha.grad.abs() > 1e-3
    torch.testing.assert_close((above - below) / 2e-5, alpha.grad, atol=1e-6, rtol=1e-5)


@pytest.mark.row("NAR-43", clause="scores are independent of the input")
@pytest.mark.row("NAR-44", clause="attention is identical for all inputs")
@every_table
def test_attention_by_a_table_is_the_same_for_all_inputs(scores: Scores) -> None:
    part = built(scores)
    with capture(part) as seen:
        for x in (tokens(seed=1), tokens(seed=2), torch.zeros(2, 7, DIM)):
            part(x, Frame())
    patterns = torch.cat(seen["pattern"])
    assert patterns.shape == (6, HEADS, 7, 7) and torch.equal(patterns, patterns[:1].expand_as(patterns))
    assert (patterns - 1 / 7).abs().max() > 0.01, "a table of zeros would be the same for all inputs too"


@pytest.mark.row("NAR-43", clause="rank of each head's R is at most 16")
def test_factorized_scores_have_the_rank_of_their_factors() -> None:
    part = Synthesizer(heads=HEADS, scores="factorized_random").build(Site(dim=DIM, causal=False, max_len=40)).double()
    initialise(part, NormalInit(), seed=0)
    table = synthetic(part, torch.zeros(1, 40, DIM, dtype=torch.double))[0]
    assert table.shape == (HEADS, 40, 40)
    assert torch.linalg.matrix_rank(table).tolist() == [16] * HEADS


@pytest.mark.row("NAR-44", clause="equals a fixed mixing matrix applied to the values")
@pytest.mark.parametrize("causal", [False, True], ids=["both_ways", "causal"])
def test_a_random_synthesizer_is_a_fixed_mixing_matrix(causal: bool) -> None:
    part, x = built("random", causal=causal), tokens()
    table = part.scores.get_parameter("table.weight").view(LONGEST, HEADS, LONGEST)[:7, :, :7].transpose(0, 1)
    hidden = torch.ones(7, 7).triu(1).bool() if causal else torch.zeros(7, 7).bool()
    mixing = table.masked_fill(hidden, -torch.inf).softmax(-1)  # [h t t]
    values = part.project(x).unflatten(-1, (HEADS, CHANNELS)).transpose(1, 2)  # [b h t c]
    expected = part.out((mixing @ values).transpose(1, 2).flatten(2))
    torch.testing.assert_close(part(x, Frame()).y, expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(part(3 * x, Frame()).y, 3 * expected, atol=1e-5, rtol=1e-5)


@pytest.mark.row(
    "NAR-40", clause=("at full size H = 8 and d_kv = 128", "scores are ReLU(q) W_pi with q = W_q x, d_kv to L = 512")
)
def test_dense_scores_at_full_size_have_one_matrix_for_eight_heads() -> None:
    for name in ("dense", "dense-plus", "dense-plus-alpha"):
        layers = full_size(name)
        assert len(layers) == 24 and {(layer.h, layer.c) for layer in layers} == {(8, 128)}
        assert {score_weights(layer)["pi.weight"].shape for layer in layers} == {(512, 128)}


@pytest.mark.row("NAR-43", clause="scores are R1^T R2, both 16 x H x 512")
@pytest.mark.row("NAR-44", clause="scores are a learned table H x 512 x 512, without queries and keys")
def test_tables_at_full_size_have_512_rows_for_each_of_eight_heads() -> None:
    shapes = {"factorized-random": [(512, 8 * 16)] * 2, "random": [(512, 8 * 512)]}
    for name, tables in shapes.items():
        for layer in full_size(name):
            assert [weight.shape for weight in score_weights(layer).values()] == tables and layer.h == 8


@every_score
@pytest.mark.parametrize("combine", ["alone", "plus_alpha"])
def test_the_position_of_a_token_picks_its_row_and_column(scores: Scores, combine: Combine) -> None:
    part, x = built(scores, combine), tokens()
    late = part(x[:, 3:], Frame(positions=torch.arange(3, 7).expand(2, -1))).y
    hidden = torch.arange(7).expand(2, -1) >= 3
    torch.testing.assert_close(part(x, Frame(valid=hidden)).y[:, 3:], late, atol=1e-6, rtol=1e-5)
    assert (part(x[:, 3:], Frame()).y - late).abs().max() > 1e-3


@every_score
@pytest.mark.parametrize("position", [None, T5Bias(share="")], ids=["", "t5_bias"])
def test_the_scores_are_the_same_element_by_element(scores: Scores, position: T5Bias | None) -> None:
    part, q, k = built(scores, "plus_alpha", position=position), torch.randn(2, 3, 3, 4), torch.randn(2, 7, 3, 4)
    for late in (torch.tensor([[4, 5, 6]]), torch.tensor([[4, 5, 6], [1, 2, 3]])):  # one row for all, or ragged
        bias, score = part.scores.bias(q, k, Marks(late), Marks(torch.arange(7)[None])), torch.randn(2, 3, 3, 7)
        one_by_one = torch.stack(
            [bias.score_mod(score[at], *map(torch.tensor, at)) for at in product(*map(range, score.shape))]
        ).view_as(score)
        torch.testing.assert_close(one_by_one, score + bias.dense())


def test_dropout_differs_between_rows_with_the_same_weights() -> None:
    part = built("random", dropout=0.5).train()
    torch.manual_seed(0)
    first, second = part(tokens()[:1].expand(2, -1, -1), Frame()).y
    assert (first - second).abs().max() > 1e-3
    assert torch.equal(*part.eval()(tokens()[:1].expand(2, -1, -1), Frame()).y)


@every_score
def test_a_longer_sequence_is_refused(scores: Scores) -> None:
    part = built(scores, causal=True)
    for call in (lambda: part(tokens(11), Frame()), lambda: part.init_state(1, 11)):
        with pytest.raises(SpecError, match="11 tokens do not fit the 10 learned positions; raise max_len"):
            call()


def test_heads_must_divide_the_width_unless_their_channels_are_set() -> None:
    with pytest.raises(SpecError, match="heads=5 must divide dim=12"):
        Synthesizer(heads=5).place(Site(dim=DIM))
    assert Synthesizer(heads=5, head_dim=2).place(Site(dim=DIM))(tokens(), Frame()).y.shape == (2, 7, DIM)
