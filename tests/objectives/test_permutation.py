"""Words in an order of chance: who sees whom, what is guessed, and what it is when the order is the usual one."""

from dataclasses import replace

import pytest
import torch
from tests.objectives.reading import adds_up, sees
from tests.objectives.small import WORDS, batch, built, ids, laid, model, noise

from anyformer.core import Frame, Marks, ReadingMarks
from anyformer.data.batching.batch import Batch
from anyformer.errors import SpecError
from anyformer.models import Block, Branch, Decoder, Encoder, Stack
from anyformer.objectives.next_token import NextToken
from anyformer.objectives.permutation import PermutationLM, guessed, random_order, two_streams
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.masks.permutation import PermutationMask as Rule
from anyformer.parts.masks.window import Window
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.mixers.linformer import Linformer
from anyformer.parts.positions.sinusoidal import Sinusoidal

row = pytest.mark.row


@row("SST-07", clause="content stream sees its own token, query stream does not")
def test_the_rule_is_its_definition() -> None:
    order, stream = torch.tensor([2, 0, 1, 2, 0, 1]), torch.tensor([0, 0, 0, 1, 1, 1])
    marks = Marks(torch.arange(6), order=order, stream=stream)
    seen = Rule().allows(marks.as_queries(), marks.as_keys())
    for i in range(6):
        for j in range(6):
            earlier = order[j] < order[i] or (order[j] == order[i] and stream[i] == 0)
            assert seen[i, j] == bool(stream[j] == 0 and earlier)


@row(
    "SST-07",
    clause=(
        "content stream sees its own token, query stream does not",
        "query stream attends to content states of earlier places in z",
        "for fixed z the query at z_t has zero Jacobian in x_z_t",
        "for fixed z the query at z_t has zero Jacobian in all later x_z",
    ),
)
def test_a_query_feels_neither_its_own_word_nor_a_later_one() -> None:
    """Through all layers, by gradients."""
    objective = PermutationLM(share=1.0)
    models, text = built(objective, model(Encoder, depth=3)), laid([ids(8, 1)])
    order = random_order(torch.ones(1, 8, dtype=torch.bool), noise(2))
    ready = two_streams(text, order, torch.ones(1, 8, dtype=torch.bool), WORDS)
    seen = sees(models["model"], ready)
    before = order[0][None, :] < order[0][:, None]  # [t s]
    assert torch.equal(seen[8:, :8], before)
    assert torch.equal(seen[:8, :8], before | torch.eye(8, dtype=torch.bool))
    assert torch.equal(seen[:, 8:], torch.eye(16, dtype=torch.bool)[:, 8:])  # a query is felt by itself alone


@row("SST-07")
def test_another_word_at_a_guessed_place_changes_no_guess_that_comes_first() -> None:
    objective = PermutationLM(share=0.5)
    whole = built(objective, model(Encoder))["model"]
    ready = objective.prepare(laid([ids(12, 1)]), WORDS, noise())
    late = ready.frame.marks.order[0, 14:].argmax()
    place = (ready.frame.marks.order[0, :14] == ready.frame.marks.order[0, 14 + late]).nonzero()[0, 0]
    other = ready.tokens.clone()
    other[0, place] = 10 if other[0, place] != 10 else 11
    before, after = (whole(tokens, ready.frame).y[0, 14:] for tokens in (ready.tokens, other))
    assert torch.equal(before, after)


@row("SST-07", clause="identity order equals a causal language model")
def test_the_usual_order_is_a_causal_language_model() -> None:
    """A query sees the words before it, and nothing else; so does a decoder that reads <mask> at its last place."""
    whole = built(PermutationLM(), model(Encoder, position=Sinusoidal()))["model"]
    text, every = laid([ids(7, 1)]), torch.ones(1, 7, dtype=torch.bool)
    ready = two_streams(text, torch.arange(7)[None], every, WORDS)
    guesses = whole(ready.tokens, ready.frame).y[0, 7:]
    for at in range(7):
        # content reads left to right as a decoder does; the last token of the prefix is a query, seen by no other
        tokens = torch.cat((text.tokens[:, :at], torch.tensor([[WORDS.mask]])), dim=1)
        stream = torch.zeros_like(tokens)
        stream[0, -1] = 1
        alone = whole(tokens, Frame(marks=ReadingMarks(order=torch.arange(at + 1)[None], stream=stream))).y[0, -1]
        torch.testing.assert_close(guesses[at], alone, rtol=1e-4, atol=1e-5)
    causal = NextToken().adapt(model(Decoder, position=Sinusoidal())).build(seed=1)
    causal.load_state_dict({name: tensor for name, tensor in whole.state_dict().items()})
    content = whole(ready.tokens, ready.frame).y[0, :7]
    torch.testing.assert_close(content, causal(text.tokens, Frame()).y[0], rtol=1e-4, atol=1e-5)


@row("SST-07", clause="only the last 1/6 of the order is predicted")
def test_the_last_sixth_of_the_order_is_guessed_and_special_tokens_never() -> None:
    ready = PermutationLM().prepare(laid([ids(60, place) for place in range(30)]), WORDS, noise())
    length = 62
    assert ready.tokens.shape[1] == length + 10 and ready.weight.sum(1).tolist() == [10.0] * 30
    asked = ready.targets[:, length:]
    assert not torch.isin(asked, torch.tensor(WORDS.special)).any()
    assert (ready.tokens[:, length:] == WORDS.mask).all()
    assert ready.frame.marks.order[:, length:].amin() == length - 10
    there = ready.tokens[:, :length].gather(1, ready.frame.positions[:, length:])
    assert torch.equal(there, asked)


def test_a_short_text_has_one_guess_and_an_empty_one_none() -> None:
    able = torch.arange(6) < torch.tensor([[0], [1], [2], [6]])
    assert guessed(random_order(able, noise()), able, share=1 / 6).sum(1).tolist() == [0, 1, 1, 1]


@row("PRE-03", "SST-07")
def test_the_text_is_all_there() -> None:
    text = ids(9, 1)
    ready = PermutationLM().prepare(laid([text]), WORDS, noise())
    assert ready.tokens[0, 1:10].tolist() == text


@row("SST-07", clause="maximises log p(x_z_t | x_z_<t) over random orders z")
def test_orders_are_permutations_and_all_alike_likely() -> None:
    order = random_order(torch.ones(6000, 3, dtype=torch.bool), noise())
    kinds, counts = order.unique(dim=0, return_counts=True)
    assert len(kinds) == 6 and counts.min() > 850


def test_packed_documents_do_not_see_each_other() -> None:
    segments = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1]])
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3]])
    given = Batch(
        tokens=torch.tensor([[11, 12, 13, 3, 14, 15, 16, 3]]), frame=Frame(segments=segments, positions=positions)
    )
    objective = PermutationLM(share=0.9)
    models, ready = built(objective, model(Encoder)), objective.prepare(given, WORDS, noise())
    seen, whose = sees(models["model"], ready), ready.frame.segments[0]
    assert not seen[whose[:, None] != whose[None, :]].any()
    assert ready.frame.positions[0, 8:].max() < 4


def test_losses_add_up_over_micro_batches() -> None:
    adds_up(PermutationLM(share=0.5), model(Encoder), batch())


@row("PRE-04", "SST-07")
def test_what_would_see_the_answers_is_refused() -> None:
    def with_part(part: object) -> Encoder:
        stack = Stack(blocks={"layer": Block(branches=(Branch(part=part), Branch(part=MLP())))}, depth=1)
        return Encoder(vocab=WORDS.size, dim=16, stack=stack)

    with pytest.raises(SpecError, match=r"linformer.*would see the answers"):
        PermutationLM().adapt(with_part(Linformer(heads=2)))
    with pytest.raises(SpecError, match="next_token"):
        PermutationLM().adapt(model(Decoder))
    with pytest.raises(SpecError, match="Use attention"):
        PermutationLM().adapt(with_part(MLP()))
    adapted = PermutationLM().adapt(with_part(Attention(heads=2, mask=Window(size=3))))
    assert adapted.stack.blocks["layer"].branches[0].part.mask == Window(size=3) & Rule()
    assert replace(adapted, stack=model(Encoder).stack).head == adapted.head
