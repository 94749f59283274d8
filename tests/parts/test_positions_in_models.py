"""Schemes of position in models: what all of them must do, whatever they are."""

from contextlib import nullcontext
from functools import cache
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from tests.checking import unchecked
from tests.parts.position_cases import (
    BIASES,
    DIM,
    HEADS,
    IN_ATTENTION,
    LONGEST,
    ON_TOKENS,
    WORDS,
    alive,
    attention,
    decoder,
    encoder,
    scheme,
    stack,
)
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from anyformer.core import (
    Bias,
    Frame,
    Heads,
    Marks,
    PartSpec,
    PositionSpec,
    Work,
    cost,
)
from anyformer.errors import SpecError
from anyformer.models.decoder import Decoder
from anyformer.models.encoder import Encoder
from anyformer.models.encoder_decoder import EncoderDecoder
from anyformer.models.stack import Block, Branch, Stack
from anyformer.parts.combine.with_positions import WithPositions
from anyformer.parts.heads.tied import Tied
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.positions.alibi import Alibi
from anyformer.parts.positions.bucketed_keys import BucketedKeys
from anyformer.parts.positions.concatenate import Concatenate
from anyformer.parts.positions.in_heads import InHeads
from anyformer.parts.positions.learned import LearnedPosition
from anyformer.parts.positions.none import NoPosition
from anyformer.parts.positions.sinusoidal import Sinusoidal, SinusoidalModule
from anyformer.parts.positions.t5_bias import T5Bias
from anyformer.parts.positions.xl import XL

every_scheme_in_attention = pytest.mark.parametrize("position", IN_ATTENTION.values(), ids=IN_ATTENTION)
every_scheme_on_tokens = pytest.mark.parametrize("position", ON_TOKENS.values(), ids=ON_TOKENS)
every_bias = pytest.mark.parametrize("position", BIASES.values(), ids=BIASES)


@pytest.mark.row("ATT-07", clause="without positions f(P x) = P f(x)")
@pytest.mark.row(
    "POS-01",
    clause=(
        "an encoder without positions is permutation-equivariant",
        "f(P x) equals P f(x) without positions, for random permutations P",
    ),
)
@pytest.mark.row("TRF-13", clause="the same block serves every position")
def test_without_positions_an_encoder_does_not_see_the_order() -> None:
    model, tokens, shuffle = alive(encoder(attention(NoPosition()))), torch.randint(WORDS, (2, 9)), torch.randperm(9)
    there, back = model(tokens[:, shuffle], Frame()).y, model(tokens, Frame()).y[:, shuffle]
    torch.testing.assert_close(there, back, atol=1e-5, rtol=1e-5)


@pytest.mark.row(
    "POS-01",
    clause=(
        "with each absolute scheme f(P x) and P f(x) differ by > 1e-3",
        "with each relative scheme f(P x) and P f(x) differ by > 1e-3",
    ),
)
@pytest.mark.row("POS-05", clause="both modes can be selected")
@pytest.mark.row("NAR-55")
@pytest.mark.parametrize("name", [*ON_TOKENS, *IN_ATTENTION])
def test_with_any_scheme_an_encoder_sees_the_order(name: str) -> None:
    model = alive(encoder(attention(IN_ATTENTION.get(name)), ON_TOKENS.get(name)))
    tokens, shuffle = torch.arange(9)[None], torch.randperm(9)
    there, back = model(tokens[:, shuffle], Frame()).y, model(tokens, Frame()).y[:, shuffle]
    assert (there - back).abs().max() > 1e-3


@pytest.mark.row("POS-03", clause="an index beyond T_max raises")
@pytest.mark.parametrize("inside", [False, True], ids=["on_tokens", "in_heads"])
def test_learned_positions_end_where_their_table_ends(inside: bool) -> None:
    part = attention(InHeads(position=LearnedPosition())) if inside else attention()
    model = alive(decoder(part, None if inside else LearnedPosition()))
    model(torch.zeros(1, LONGEST, dtype=torch.long), Frame())
    with pytest.raises(SpecError, match=f"{LONGEST + 1} tokens do not fit the {LONGEST} learned positions"):
        model(torch.zeros(1, LONGEST + 1, dtype=torch.long), Frame())


@pytest.mark.parametrize(
    ("part", "position"),
    [
        (attention(), LearnedPosition()),
        (attention(), Concatenate(position=LearnedPosition())),
        (attention(InHeads(position=LearnedPosition())), None),
        (WithPositions(position=LearnedPosition(), part=attention()), None),
        (WithPositions(position=Concatenate(position=LearnedPosition()), part=attention()), None),
    ],
    ids=["model", "concatenate", "in_heads", "with_positions", "positioned_concatenate"],
)
def test_decoding_past_a_learned_table_is_refused_before_the_first_token(
    part: PartSpec, position: PositionSpec | None
) -> None:
    model = decoder(part, position).build()
    model.init_state(1, LONGEST)
    with pytest.raises(SpecError, match=f"{LONGEST + 1} tokens do not fit the {LONGEST} learned positions"):
        model.init_state(1, LONGEST + 1)


@pytest.mark.row("POS-05")
def test_positions_in_heads_refuse_grouped_keys_when_built() -> None:
    spec = decoder(attention(InHeads(position=Sinusoidal()), kv_heads=1))
    with pytest.raises(SpecError, match=r"part\.position: in_heads has a vector for each of 2 heads, the keys have 1"):
        spec.build(device="meta")


@pytest.mark.parametrize("position", [NoPosition(), Alibi()], ids=["none", "alibi"])
def test_positioned_refuses_a_scheme_without_vectors(position: PositionSpec) -> None:
    with pytest.raises(SpecError, match=r"part\.position: .* has no position vectors"):
        decoder(WithPositions(position=position, part=attention())).build(device="meta")


@pytest.mark.row(
    "POS-06",
    clause=(
        "positions are added at each layer, or only at the first",
        "a hook counts the injections: one per layer, or one in all",
    ),
)
def test_a_positioned_part_puts_positions_in_at_each_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, embed = [], SinusoidalModule.embed

    def counted(self: SinusoidalModule, x: Tensor, positions: Tensor) -> Tensor:
        calls.append(x)
        return embed(self, x, positions)

    monkeypatch.setattr(SinusoidalModule, "embed", counted)
    again = WithPositions(position=Sinusoidal(), part=attention())
    for spec, times in (
        (encoder(attention(), Sinusoidal()), 1),
        (encoder(again), 2),
        (encoder(again, Sinusoidal()), 3),
    ):
        calls.clear()
        alive(spec)(torch.zeros(1, 4, dtype=torch.long), Frame())
        assert len(calls) == times


@pytest.mark.row("POS-06", clause="both options train on a task that needs order")
@pytest.mark.parametrize("again", [False, True], ids=["once", "again"])
def test_an_encoder_learns_an_order_from_positions_put_in_once_or_again(again: bool) -> None:
    part = WithPositions(position=Sinusoidal(), part=attention()) if again else attention()
    spec = Encoder(vocab=4, dim=DIM, stack=stack(part), position=None if again else Sinusoidal(), head=Tied())
    model, rng = spec.build(), torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for step in range(80):
        tokens = torch.randint(4, (32, 6), generator=rng)
        with unchecked() if step else nullcontext():
            logits = model(tokens, Frame()).y
        loss = F.cross_entropy(logits[:, 1:].flatten(0, 1), tokens[:, :-1].flatten())  # what stood before me?
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.5  # without positions no better than the other five tokens allow: 1.1


@pytest.mark.row("XF-11", clause="positions are relative")
@pytest.mark.row("POS-07", clause="shifting the window leaves the outputs unchanged")
@pytest.mark.row("NAR-55", clause="relative keys: shifting the window leaves the outputs unchanged")
@pytest.mark.row("POS-08", "POS-09")
@every_bias
def test_a_relative_scheme_does_not_feel_a_shift(position: PositionSpec) -> None:
    model, tokens = alive(decoder(attention(position))), torch.randint(WORDS, (2, 9))
    shifted = Frame(positions=100 + torch.arange(9).expand(2, -1))
    torch.testing.assert_close(model(tokens, shifted).y, model(tokens, Frame()).y, atol=1e-5, rtol=1e-5)


@pytest.mark.row("NAR-55", clause="choices: sinusoidal, bias per layer, shared bias, bucketed keys")
@pytest.mark.parametrize(
    ("inside", "outside", "weights"),
    [
        (None, Sinusoidal(), 0),
        (T5Bias(share=""), None, 2 * 32 * HEADS),
        (T5Bias(), None, 32 * HEADS),
        (BucketedKeys(), None, 2 * 32 * HEADS * (DIM // HEADS)),
    ],
    ids=["sinusoidal", "bias_per_layer", "bias_shared", "bucketed_keys"],
)
def test_the_four_choices_of_the_study_differ_by_their_tables(
    inside: PositionSpec | None, outside: PositionSpec | None, weights: int
) -> None:
    spec, plain = encoder(attention(inside), outside), encoder(attention())
    models = [model.build(device="meta") for model in (spec, plain)]
    counts = [sum(parameter.numel() for parameter in model.parameters()) for model in models]
    assert counts[0] - counts[1] == weights
    model, tokens = alive(spec), torch.arange(9)[None]
    assert (model(tokens.flip(1), Frame()).y.flip(1) - model(tokens, Frame()).y).abs().max() > 1e-3


@pytest.mark.row("POS-08", clause="shared: one table per stack, the first layer's; else one per layer")
@pytest.mark.row("NAR-55")
def test_t5_has_one_table_per_stack_or_one_per_layer() -> None:
    def tables(spec: Encoder | EncoderDecoder) -> int:
        return sum(tuple(parameter.shape) == (32, HEADS) for parameter in spec.build(device="meta").parameters())

    shared = attention(T5Bias())
    assert tables(encoder(shared)) == 1
    assert tables(encoder(attention(T5Bias(share="")))) == 2
    assert tables(EncoderDecoder(encoder=encoder(shared), decoder=decoder(shared))) == 2


@pytest.mark.row("POS-09", clause="u, v: per layer as in XLNet, over all layers as in Transformer-XL")
@pytest.mark.parametrize(("share", "expected"), [(None, 4), ("xl", 2)])
def test_xl_has_one_u_and_v_per_layer_or_one_for_all_layers(share: str | None, expected: int) -> None:
    model = encoder(attention(XL(share=share))).build()
    leanings = [parameter for parameter in model.parameters() if parameter.shape == (HEADS, DIM // HEADS)]
    assert len(leanings) == expected
    with torch.no_grad():
        leanings[0].normal_()
    moved = [layer.branches[0].part.position.leanings.module.u for layer in model.stack.calls()]
    assert torch.equal(moved[0], moved[1]) is (share is not None)


@pytest.mark.row("POS-05", clause="p_i is added to the projected q_i, k_i and v_i at the first layer")
def test_positions_in_the_heads_of_the_first_layer_alone_tell_orders_apart() -> None:
    first, other = (
        Block(branches=(Branch(part=attention(position)),)) for position in (InHeads(position=Sinusoidal()), None)
    )
    placed = Stack(blocks={"first": first, "other": other}, layout=("first", "other", "other"), depth=3)
    tokens, told = torch.tensor([[1, 2, 3, 4]]), []
    for layers in (placed, Stack(blocks={"other": other}, depth=3)):
        model = alive(Encoder(vocab=WORDS, dim=DIM, stack=layers))
        told.append(not torch.allclose(model(tokens, Frame()).y, model(tokens.flip(1), Frame()).y.flip(1), atol=1e-4))
    assert told == [True, False]


@pytest.mark.row("POS-08")
@pytest.mark.parametrize("position", [T5Bias(), XL(share="one")], ids=["t5_bias", "xl"])
def test_layers_with_different_heads_cannot_share(position: PositionSpec) -> None:
    blocks = {
        name: Block(branches=(Branch(part=Attention(heads=n, position=position)),)) for name, n in (("a", 2), ("b", 4))
    }
    with pytest.raises(SpecError, match="another tag"):
        Encoder(vocab=WORDS, dim=DIM, stack=Stack(blocks=blocks, depth=2)).build(device="meta")


@every_bias
@pytest.mark.parametrize("causal", [False, True], ids=["both_ways", "causal"])
def test_a_bias_says_the_same_element_by_element(position: PositionSpec, causal: bool) -> None:
    module = scheme(position, Heads(4, 8, 0.3), causal=causal)
    q, k = torch.randn(2, 3, 4, 8), torch.randn(2, 7, 2, 8)
    for late in (torch.tensor([[4, 5, 6]]), torch.tensor([[4, 5, 6], [1, 2, 3]])):  # one row for all, or ragged
        bias = module.bias(q, k, Marks(late), Marks(torch.arange(7)[None]))
        assert isinstance(bias, Bias)
        score = torch.randn(2, 4, 3, 7)
        one_by_one = torch.stack(
            [bias.score_mod(score[at], *map(torch.tensor, at)) for at in product(*map(range, score.shape))]
        ).view_as(score)
        torch.testing.assert_close(one_by_one, score + bias.dense())


@pytest.mark.row("POS-02", "POS-03", "POS-05", "POS-06", "POS-07", "POS-08", "POS-09")
@pytest.mark.parametrize("name", ["with_positions", *ON_TOKENS, *IN_ATTENTION])
@torch.no_grad()
def test_decoding_step_by_step_is_the_parallel_pass(name: str) -> None:
    part: PartSpec = attention(IN_ATTENTION.get(name))
    part = WithPositions(position=Sinusoidal(), part=part) if name == "with_positions" else part
    model, tokens = alive(decoder(part, ON_TOKENS.get(name))), torch.randint(WORDS, (2, 9))
    state, steps = model.init_state(2, LONGEST), []
    for t in range(9):
        out = model(tokens[:, t : t + 1], Frame(positions=torch.full((2, 1), t)), state)
        state = out.state
        steps.append(out.y)
    torch.testing.assert_close(torch.cat(steps, 1), model(tokens, Frame()).y, atol=1e-4, rtol=1e-4)


@every_scheme_in_attention
def test_packed_documents_have_positions_of_their_own(position: PositionSpec) -> None:
    model, first, second = (
        alive(decoder(attention(position))),
        torch.randint(WORDS, (1, 5)),
        torch.randint(WORDS, (1, 6)),
    )
    frame = Frame(
        positions=torch.cat([torch.arange(5), torch.arange(6)])[None], segments=torch.tensor([[0] * 5 + [1] * 6])
    )
    packed, alone = model(torch.cat([first, second], 1), frame).y, [model(x, Frame()).y for x in (first, second)]
    torch.testing.assert_close(packed, torch.cat(alone, 1), atol=1e-4, rtol=1e-4)


def counted(spec: Encoder | Decoder, work: Work) -> tuple[int, int]:
    """FLOPs of forward and backward as torch counts them."""
    model, tokens = alive(spec), torch.zeros(work.batch, work.length, dtype=torch.long)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as forward:
        y = model(tokens, Frame()).y
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as backward:
        y.sum().backward()
    return forward.get_total_flops(), backward.get_total_flops()


def predicted(spec: Encoder | Decoder, work: Work) -> tuple[int, int]:
    total = cost(spec, work).total
    return total.flops_forward, total.flops_backward


@cache
def without_positions(work: Work) -> tuple[tuple[int, int], tuple[int, int]]:
    """FLOPs of a decoder without positions: as predicted, and as torch counts them."""
    return predicted(decoder(attention()), work), counted(decoder(attention()), work)


@pytest.mark.row("POS-07", "POS-09")
@every_scheme_in_attention
def test_flops_of_a_scheme_are_those_that_torch_counts(position: PositionSpec) -> None:
    work = Work(batch=2, length=7)
    kv_heads = None if isinstance(position, InHeads) else 1
    for scheme_kv_heads in {None, kv_heads}:
        spec = encoder(attention(position, scheme_kv_heads))
        assert predicted(spec, work) == counted(spec, work)
    with_it, (bases, their_bases) = decoder(attention(position)), without_positions(work)
    for mine, base, theirs, their_base in zip(
        predicted(with_it, work), bases, counted(with_it, work), their_bases, strict=True
    ):  # causal: torch counts what the mask hides
        assert mine - base == theirs - their_base
