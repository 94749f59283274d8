"""Weighted attention: against a loop over heads, with one head against attention and a net, and at full size."""

from typing import Any

import pytest
import torch
from tests.conformance.subjects import all_pairs_count
from tests.conformance.translators import branch, translator
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from anyformer.core import Frame, Memory, Site, Work, capture, cost, initialise
from anyformer.errors import SpecError
from anyformer.parts.channels.mlp import MLP, MLPPart
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.mixers.attention import Attention, AttentionPart
from anyformer.parts.mixers.weighted_attention import WeightedAttention, WeightedAttentionPart
from anyformer.parts.positions.sinusoidal import Sinusoidal
from anyformer.parts.positions.t5_bias import T5Bias
from anyformer.training import load

DIM, HEADS, CHANNELS, HIDDEN = 12, 3, 4, 10
every_site = pytest.mark.parametrize("place", ["both_ways", "causal", "cross"])


def built(place: str = "both_ways", **options: Any) -> WeightedAttentionPart:
    spec = WeightedAttention(**{"heads": HEADS, "hidden": HIDDEN, "bias": True, **options})
    part = spec.build(Site(dim=DIM, causal=place != "both_ways", source="memory" if place == "cross" else "self"))
    initialise(part, NormalInit(deviation=0.4), seed=0)
    with torch.no_grad():
        for index, vector in enumerate((part.kappa, part.alpha, part.up.bias, part.down.bias)):
            assert vector is not None
            vector.copy_(torch.randn(vector.shape, generator=torch.Generator().manual_seed(index)))
    return part


def tokens(length: int = 7, seed: int = 1) -> Tensor:
    return torch.randn(2, length, DIM, generator=torch.Generator().manual_seed(seed))


def slow_branches(part: WeightedAttentionPart, x: Tensor, source: Tensor) -> Tensor:
    """The part for one row of tokens [t d] that attend to `source` [s d]: a loop over tokens and heads."""
    rows = []
    kappa, alpha = (weights.exp() / weights.exp().sum() for weights in (part.kappa, part.alpha))
    w_k, w_v = part.kv.weight.split(HEADS * CHANNELS)
    for i in range(len(x)):
        y = torch.zeros(DIM)
        for h in range(HEADS):
            head = slice(h * CHANNELS, (h + 1) * CHANNELS)
            q, visible = part.q.weight[head] @ x[i], source if part.rule.is_full else source[: i + 1]
            scores = torch.stack([q @ (w_k[head] @ token) / CHANNELS**0.5 for token in visible])
            mean = sum(weight * (w_v[head] @ token) for weight, token in zip(scores.softmax(0), visible, strict=True))
            branch = kappa[h] * (part.out[:, head] @ mean)
            hidden = (part.up.weight @ branch + part.up.bias).clamp(min=0)
            y = y + alpha[h] * (part.down.weight @ hidden + part.down.bias)
        rows.append(y)
    return torch.stack(rows)


@pytest.mark.row(
    "NAR-51",
    clause=(
        "each head is projected to d alone, without concatenation",
        "times kappa_h, through a shared FFN, times alpha_h, then summed",
    ),
)
@every_site
def test_heads_pass_the_feed_forward_net_alone_as_in_the_slow_loop(place: str) -> None:
    part, x, source = built(place), tokens().requires_grad_(), tokens(5, seed=2)
    y = part(x, Frame(memory=Memory(x=source) if place == "cross" else None)).y
    expected = torch.stack(
        [slow_branches(part, *row) for row in zip(x, source if place == "cross" else x, strict=True)]
    )
    torch.testing.assert_close(y, expected, atol=1e-5, rtol=1e-5)
    wanted, inputs = torch.randn(y.shape, generator=torch.Generator().manual_seed(3)), (x, *part.parameters())
    mine, theirs = (torch.autograd.grad((out * wanted).sum(), inputs) for out in (y, expected))
    for gradient, slow in zip(mine, theirs, strict=True):
        assert slow.abs().max() > 1e-4
        torch.testing.assert_close(gradient, slow, atol=1e-5, rtol=1e-4)


@pytest.mark.row("NAR-51", clause="one branch reduces to attention and FFN")
@every_site
def test_one_branch_is_attention_and_then_a_feed_forward_net(place: str) -> None:
    site = Site(dim=DIM, causal=place != "both_ways", source="memory" if place == "cross" else "self")
    position = None if place == "cross" else T5Bias(share="")
    part = built(place, heads=1, position=position)
    attention = Attention(heads=1, position=position).build(site)
    net = MLP(hidden=HIDDEN, activation="relu", bias=True).build(site)
    for module in (attention, net):
        initialise(module, NormalInit(), seed=0)
    projections = {"q.weight": part.q.weight, "kv.weight": part.kv.weight}
    if place != "cross":
        projections = {"qkv.weight": torch.cat(list(projections.values()))}
    bias = {f"position.{name}": weight for name, weight in part.position.state_dict().items()}
    attention.load_state_dict({**projections, **bias, "out.weight": part.out})
    net.load_state_dict({name: weight for name, weight in part.state_dict().items() if name.startswith(("up", "down"))})
    frame = Frame(memory=Memory(x=tokens(5, seed=2)))
    expected = net(attention(tokens(), frame).y, frame).y
    torch.testing.assert_close(part(tokens(), frame).y, expected, atol=1e-6, rtol=1e-5)


def test_cross_attention_decodes_token_by_token_from_keys_that_are_projected_once() -> None:
    part, memory = built("cross"), Memory(x=tokens(5, seed=2), valid=torch.arange(5) < torch.tensor([[5], [3]]))
    state = part.init_state(2, 7, memory)
    steps = [part(x, Frame(positions=torch.full((2, 1), at)), state).y for at, x in enumerate(tokens().split(1, 1))]
    torch.testing.assert_close(torch.cat(steps, 1), part(tokens(), Frame(memory=memory)).y, atol=1e-6, rtol=1e-5)


def test_operations_of_both_kinds_of_attention_equal_the_counter() -> None:
    weighted = {"kind": "weighted_attention", "bias": True}
    cross = branch({"kind": "cross", "part": weighted})
    spec = translator([branch(weighted)], [branch(weighted), cross], vocab=11, dim=8, max_len=16)
    with all_pairs_count():
        card = cost(spec, Work(batch=2, length=6, source=5)).total
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model, ids = spec.build(), torch.zeros(2, 6, dtype=torch.long)
        model(ids, Frame(memory=model.encode(ids[:, :5], Frame()))).y.sum().backward()
    assert card.flops_forward + card.flops_backward == counter.get_total_flops()


@pytest.mark.row(
    "NAR-51",
    clause=(
        "kappa and alpha are >= 0 and each sum to 1",
        "constraints hold after every optimiser step, without a projection",
    ),
)
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_the_weights_of_heads_stay_on_the_simplex_while_they_learn(optimizer: Any) -> None:
    part, x = built(), tokens()
    steps, before = optimizer(part.parameters(), lr=0.5), torch.stack(part.branch_weights()).detach()
    for _ in range(5):
        steps.zero_grad()
        (part(x, Frame()).y - x).square().mean().backward()
        steps.step()
        weights = torch.stack(part.branch_weights())
        assert (weights >= 0).all()
        torch.testing.assert_close(weights.sum(1), torch.ones(2))
    assert (weights - before).abs().amax(1).min() > 1e-3, "both of them learn"


def test_all_heads_weigh_the_same_at_the_start() -> None:
    part = WeightedAttention(heads=HEADS).build(Site(dim=DIM))
    initialise(part, NormalInit(), seed=0)
    assert torch.equal(torch.stack(part.branch_weights()), torch.full((2, HEADS), 1 / HEADS))


@pytest.mark.row("NAR-51", clause="times kappa_h, through a shared FFN, times alpha_h, then summed")
def test_a_head_of_weight_zero_is_left_out() -> None:
    part, x = built(), tokens()
    with torch.no_grad():
        part.alpha[1] = -torch.inf
        with capture(part) as seen:
            y = part(x, Frame()).y
        _, alpha = part.branch_weights()
    branches = seen["branches"][0]  # [b t h d]
    assert branches.shape == (2, 7, HEADS, DIM) and alpha[1] == 0
    torch.testing.assert_close(y, alpha[0] * branches[:, :, 0] + alpha[2] * branches[:, :, 2])


@pytest.mark.slow
@pytest.mark.row("NAR-51", clause="published operations 71T, each head passing the FFN on its own")
def test_the_studys_operations_are_those_of_a_net_for_each_head() -> None:
    """128 rows of 512 tokens with 114 to predict; a multiplication with its addition is one operation, and the study
    multiplies one-hot rows with the embedding table."""
    lookups = (512 + 114) * 32_128 * 768
    for name, published in (("vanilla", 11.1e12), ("vanilla-weighted", 71e12)):
        flops = cost(load(name), Work(batch=1, length=114, source=512)).total.flops_forward
        assert 128 * (flops / 2 + lookups) == pytest.approx(published, rel=0.01)


@pytest.mark.row("NAR-51", clause="279.5M parameters (published 280M)")
def test_at_full_size_every_attention_has_a_feed_forward_net_and_none_stands_alone() -> None:
    model = load("vanilla-weighted").build(device="meta")
    parts = [module for module in model.modules() if isinstance(module, WeightedAttentionPart)]
    assert len(parts) == 12 + 2 * 12 and sum(part.cross for part in parts) == 12
    assert {(part.h, part.c, part.up.weight.shape) for part in parts} == {(12, 64, (3072, 768))}
    assert not any(isinstance(module, AttentionPart | MLPPart) for module in model.modules())


@pytest.mark.parametrize(
    ("options", "source", "message"),
    [
        ({"heads": 5}, "self", "heads=5 must divide dim=12"),
        ({"position": T5Bias()}, "memory", "it takes no `position`"),
        ({"position": Sinusoidal()}, "self", "sinusoidal acts on token vectors"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], source: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        WeightedAttention(**{"heads": HEADS, **options}).build(Site(dim=DIM, source=source))
