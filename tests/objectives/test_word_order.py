"""Shuffled trigrams: which, how many, and that they can be put right."""

import pytest
import torch
from scipy.stats import chisquare
from tests.objectives.reading import adds_up
from tests.objectives.small import WORDS, batch, built, laid, model, noise

from anyformer.errors import SpecError
from anyformer.models import Decoder, Encoder
from anyformer.objectives.corruption import shuffle_trigrams
from anyformer.objectives.word_order import WordOrder
from anyformer.objectives.words import PARTS

row = pytest.mark.row
HUGE = WORDS._replace(size=10**7)


@row(
    "SST-06",
    clause=(
        "word objective: 5% of trigrams shuffled, original order predicted",
        "corruption statistics: measured share of shuffled trigrams as set",
    ),
)
def test_5_percent_of_the_trigrams_change_their_order_each_way_as_often() -> None:
    tokens = torch.arange(10**6).view(1000, 1000)
    everywhere = torch.ones_like(tokens, dtype=torch.bool)
    inputs, targets, weight = shuffle_trigrams(tokens, everywhere, torch.zeros_like(tokens), 0.05, noise())
    changed = inputs[weight > 0].view(-1, 3)
    total = 333 * 1000
    assert chisquare([len(changed), total - len(changed)], [0.05 * total, 0.95 * total]).pvalue > 1e-3
    places = (changed - changed.amin(1, keepdim=True)) @ torch.tensor([9, 3, 1])
    kinds, counts = places.unique(return_counts=True)
    assert len(kinds) == 5 and 5 not in kinds  # 0 1 2 is the right order
    assert chisquare(counts).pvalue > 1e-3
    assert torch.equal(changed.sort(1).values, targets[weight > 0].view(-1, 3))
    assert torch.equal(inputs[weight == 0], tokens[weight == 0])


@row("SST-06", "PRE-03")
def test_only_plain_words_of_one_document_change_places_and_the_text_comes_back() -> None:
    tokens = torch.arange(60).view(2, 30)
    free = torch.rand(tokens.shape, generator=noise(1)) < 0.8
    whose = (torch.arange(30) // 7).expand(2, -1)
    mixed = shuffle_trigrams(tokens, free, whose, 1.0, noise())
    assert mixed.weight.sum() > 0 and not mixed.weight[~free].any()
    for document in whose.unique():
        assert set(mixed.inputs[0, whose[0] == document].tolist()) == set(tokens[0, whose[0] == document].tolist())
    assert torch.equal(mixed.targets.where(mixed.weight > 0, mixed.inputs), tokens)


@row("SST-06")
def test_masked_and_shuffled_words_are_different_ones() -> None:
    texts = laid([list(range(10 + 90 * place, 100 + 90 * place)) for place in range(50)])
    ready = WordOrder(share=0.5).prepare(texts, HUGE, noise())
    masked, shuffled = ready.weight > 0, ready.inputs.weight > 0
    assert masked.any() and shuffled.any() and not (masked & shuffled).any()
    assert (ready.tokens[shuffled] != WORDS.mask).all()
    assert torch.equal(ready.targets[:, 1:-1], texts.tokens)


@row("SST-06")
@pytest.mark.parametrize("sentences", ["none", "three_way"])
def test_losses_add_up_over_micro_batches(sentences: str) -> None:
    adds_up(WordOrder(share=1.0, masked=0.1, sentences=sentences), model(Encoder), batch())


@row("SST-06", clause="both objectives are added to masked language modelling")
def test_shuffled_words_and_the_order_of_sentences_are_learned_beside_masked_words() -> None:
    objective = WordOrder(share=0.9, sentences="three_way")
    models, ready = built(objective, model(Encoder)), objective.prepare(batch(), WORDS, noise())
    terms = objective.loss(models, ready, noise())
    assert terms.keys() - {PARTS} == {"words", "shuffled", "order"}
    for name in ("words", "shuffled", "order"):
        gradients = torch.autograd.grad(terms[name].sum, [*models["model"].parameters()], None, True, allow_unused=True)
        assert any(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients), name


def test_a_decoder_is_refused() -> None:
    with pytest.raises(SpecError, match="next_token"):
        WordOrder().adapt(model(Decoder))


def test_a_text_too_short_for_a_trigram_is_left_alone() -> None:
    ready = WordOrder(masked=0.0).prepare(laid([[11]]), WORDS, noise())
    assert not ready.inputs.weight.any() and torch.equal(ready.tokens, ready.targets)
