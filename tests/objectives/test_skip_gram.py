"""Word2vec: the equation, what it draws, what it learns, and one vector for both meanings of a word."""

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from tests.objectives.every import ENCODER, STATIC
from tests.objectives.small import WORDS, batch, built, laid, learn, noise

from anyformer.core import Frame
from anyformer.data.batching.batch import Batch, Continuation, RowLabels
from anyformer.errors import SpecError
from anyformer.models import Block, Branch, Stack
from anyformer.objectives.skip_gram import SkipGram
from anyformer.objectives.token_labels import TokenLabels
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.positions.rope import Rope

FIRST = 10
"""The first id that is a plain word."""


def vectors(models):
    """What the model makes of each word by itself."""
    words = torch.arange(WORDS.size)[None]
    return torch.nn.functional.normalize(models["model"](words, Frame(), logits=False).y[0].detach(), dim=-1)


@pytest.mark.row("PRE-01", clause="objective is log s(v.u_o) + sum_k log s(-v.u_k), by the equation")
def test_the_loss_is_that_of_the_equation() -> None:
    objective = SkipGram(window=2, negatives=3)
    models, ready = built(objective, STATIC), objective.prepare(batch(), WORDS, noise())
    v, u = models["model"].embedding.weight, models["model"].head.words.weight
    offsets, total, pairs = (-1, 1, -2, 2), 0.0, 0
    for row, place, index in ready.inputs.pairs.nonzero().tolist():
        centre, context = v[ready.tokens[row, place]], ready.tokens[row, place + offsets[index]]
        total += torch.sigmoid(centre @ u[context]).log()
        total += sum(torch.sigmoid(-centre @ u[k]).log() for k in ready.inputs.noise[row, place, index])
        pairs += 1
    found = objective.loss(models, ready, noise())["contexts"]
    torch.testing.assert_close(found.sum, -total)
    assert found.weight == pairs > 20


@pytest.mark.row("PRE-01", clause="CBOW predicts a word from the mean of its neighbours")
def test_the_mean_of_its_neighbours_predicts_a_word() -> None:
    objective = SkipGram(window=2, negatives=3, predicts="word")
    models, ready = built(objective, STATIC), objective.prepare(batch(), WORDS, noise())
    v, u = models["model"].embedding.weight, models["model"].head.words.weight
    offsets, total, words = (-1, 1, -2, 2), torch.zeros(()), 0
    for row, place in ready.inputs.pairs.any(-1).nonzero().tolist():
        around = [place + offsets[index] for index in ready.inputs.pairs[row, place].nonzero().flatten().tolist()]
        mean = sum(v[ready.tokens[row, other]] for other in around) / len(around)
        total = total + torch.sigmoid(mean @ u[ready.tokens[row, place]]).log()
        total = total + sum(torch.sigmoid(-mean @ u[k]).log() for k in ready.inputs.noise[row, place, 0])
        words += 1
    term = objective.loss(models, ready, noise())["contexts"]
    torch.testing.assert_close(term.sum, -total)
    assert term.weight == objective.counts(ready)["contexts"] == words > 20
    grads, wanted = (torch.autograd.grad(loss, (v, u)) for loss in (term.sum, -total))
    torch.testing.assert_close(grads, wanted)


def test_contexts_are_within_the_window_the_text_and_the_document() -> None:
    objective = SkipGram(window=3)
    rows = batch()
    segments = torch.arange(9).ge(4).long().expand(6, 9)
    packed = rows.__class__(tokens=rows.tokens, frame=Frame(valid=rows.frame.valid, segments=segments))
    ready = objective.prepare(packed, WORDS, noise())
    offsets, kept = (-1, 1, -2, 2, -3, 3), ready.frame.valid
    for row, place, index in ready.inputs.pairs.nonzero().tolist():
        other = place + offsets[index]
        assert 0 <= other < kept.shape[1] and kept[row, place] and kept[row, other]
        assert (place < 4) == (other < 4)


def test_contexts_end_with_the_document_where_rows_are_cut_out_of_the_text_too() -> None:
    tokens, begins = torch.tensor([[10, 11, 3, 20, 21, 3]]), torch.tensor([[1, 0, 0, 1, 0, 0]]).bool()
    cut = Batch(tokens=tokens, frame=Frame(), starts=begins, continuation=Continuation(before=torch.tensor([-1])))
    packed = Batch(tokens=tokens, frame=Frame(segments=begins.cumsum(1), positions=torch.tensor([[0, 1, 2] * 2])))
    found, wanted = (SkipGram(window=1).prepare(one, WORDS, noise()).inputs.pairs for one in (cut, packed))
    assert found.equal(wanted) and wanted.any()


@pytest.mark.row("PRE-01", clause="negatives are drawn from unigram counts to the power 0.75")
def test_noise_is_drawn_by_the_counts_to_the_power_of_three_quarters() -> None:
    text = [10] * 810 + [11] * 160 + [12] * 30
    objective = SkipGram(window=1, negatives=20)
    drawn = objective.prepare(laid([text]), WORDS, noise()).inputs.noise.flatten()
    odds = torch.tensor([810.0, 160.0, 30.0]) ** 0.75
    shares = torch.bincount(drawn, minlength=13)[10:] / len(drawn)
    torch.testing.assert_close(shares, odds / odds.sum(), rtol=0.05, atol=0.005)


@pytest.mark.row("PRE-01", clause="frequent words are subsampled")
def test_frequent_words_are_left_out_and_windows_reach_over_them() -> None:
    rng = noise(3)
    text = [10 if lot < 0.9 else 11 + int(1000 * lot) % 29 for lot in torch.rand(4000, generator=rng).tolist()]
    objective = SkipGram(window=1, subsample=0.01)
    ready = objective.prepare(laid([text]), WORDS, noise())
    before, after = Counter(text), Counter(ready.tokens[ready.frame.valid].tolist())
    kept = math.sqrt(0.01 * len(text) / before[10])
    assert after[10] == pytest.approx(kept * before[10], rel=0.15)
    rare = [word for word in before if word != 10 and before[word] < 0.01 * len(text)]
    assert rare and all(after[word] == before[word] for word in rare)
    assert ready.frame.valid.all() and ready.inputs.pairs[0, 1:-1].bool().any(-1).all()  # no gaps are left


@pytest.mark.row("PRE-01", clause="two topic clusters: cosine within a topic exceeds that across topics")
@pytest.mark.parametrize("predicts", ["neighbours", "word"])
def test_words_of_a_topic_come_to_lie_together(predicts: str) -> None:
    rng = noise(5)
    topics = [torch.randint(FIRST + 12 * topic, FIRST + 12 * topic + 12, (12,), generator=rng) for topic in (0, 1) * 30]
    data = laid([row.tolist() for row in topics])
    objective = SkipGram(window=3, predicts=predicts)
    models = {"model": objective.adapt(STATIC).build(seed=1)}
    learn(objective, models, [objective.prepare(data, WORDS, noise(seed)) for seed in range(5)], 60, lr=0.03)
    found = vectors(models)[FIRST : FIRST + 24]
    cosines = found @ found.T
    inside = torch.cat((cosines[:12, :12], cosines[12:, 12:])).mean()
    assert inside > cosines[:12, 12:].mean() + 0.5


@pytest.mark.row("PRE-01", clause="a toy analogy is solved by vector arithmetic")
def test_king_less_man_and_woman_is_near_queen() -> None:
    king, queen, man, woman, crown, throne, field, plough, he, him, she, her = range(FIRST, FIRST + 12)
    worlds = {king: (crown, throne, he, him), queen: (crown, throne, she, her)}
    worlds |= {man: (field, plough, he, him), woman: (field, plough, she, her)}
    rows = [[word, context] for word, around in worlds.items() for context in around] * 12
    objective = SkipGram(window=1)
    models = {"model": objective.adapt(STATIC).build(seed=1)}
    learn(objective, models, [objective.prepare(laid(rows), WORDS, noise(seed)) for seed in range(20)], 150, lr=0.03)
    found = vectors(models)
    near = found[FIRST : FIRST + 12] @ (found[king] - found[man] + found[woman])
    near[[king - FIRST, man - FIRST, woman - FIRST]] = -1.0  # the words that were asked with do not count
    assert near.argmax() + FIRST == queen


def test_a_model_that_sees_the_neighbours_is_refused() -> None:
    with pytest.raises(SpecError, match="attention would show each word the neighbours"):
        SkipGram().adapt(ENCODER)


@pytest.mark.row("PRE-01", clause="one vector per word, whatever its context")
@pytest.mark.row(
    "PRE-02",
    clause=(
        "a static table gives both uses of 'record' the same vector",
        "cosine of the two 'record' vectors is exactly 1 with word2vec",
        "cosine of the two 'record' states is below 0.999 in a contextual model",
    ),
)
def test_i_record_the_record_has_one_vector_without_context_and_two_with() -> None:
    i, you, record, the, a, song, play = range(FIRST, FIRST + 7)
    doing = [[who, record, what, song] for who in (i, you) for what in (the, a)]
    thing = [[who, play, what, record] for who in (i, you) for what in (the, a)]
    text = laid(doing + thing)
    verbs = replace(
        text, labels=RowLabels(tags=(torch.arange(4) == 1).long().expand(8, 4))
    )  # what is done stands second
    placed = Stack(blocks={"layer": Block(branches=(Branch(part=Attention(heads=2, position=Rope())),))}, depth=2)
    cosines = {}
    for objective, spec in ((SkipGram(window=2), STATIC), (TokenLabels(classes=2), replace(ENCODER, stack=placed))):
        models = {"model": objective.adapt(spec).build(seed=1)}
        learn(objective, models, [objective.prepare(verbs, WORDS, noise(seed)) for seed in range(5)], 40, lr=0.02)
        h = models["model"](torch.tensor([[i, record, the, record]]), Frame(), logits=False).y[0].detach().double()
        cosines[objective.kind] = torch.cosine_similarity(h[1], h[3], dim=0).item()
    assert cosines["skip_gram"] == pytest.approx(1.0, abs=1e-12)
    assert cosines["token_labels"] < 0.999
