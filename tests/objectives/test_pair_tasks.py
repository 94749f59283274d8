"""Entailment, similarity and answers in a text: what the model reads, and that each head learns a small task."""

import pytest
import torch
from tests.objectives.small import WORDS, built, learn, model, noise

from anyformer.core import Frame
from anyformer.data.batching.batch import Batch, RowLabels
from anyformer.models import Encoder
from anyformer.objectives.objective import Objective
from anyformer.objectives.sentence_pairs import SentencePairs
from anyformer.objectives.token_labels import TokenLabels
from anyformer.parts.positions.sinusoidal import Sinusoidal

ROWS, SEEN = 384, 320
READER = model(Encoder, position=Sinusoidal())


def pairs(first: torch.Tensor, second: torch.Tensor, label: torch.Tensor) -> Batch:
    source = Batch(tokens=first, frame=Frame(valid=torch.ones_like(first, dtype=torch.bool)))
    frame = Frame(valid=torch.ones_like(second, dtype=torch.bool))
    return Batch(tokens=second, frame=frame, source=source, labels=RowLabels(label=label))


def unseen_loss(objective: Objective, raw: Batch, term: str, steps: int) -> float:
    """Nats for each answer of rows that were not trained on."""
    parts = torch.arange(ROWS).split([SEEN, ROWS - SEEN])
    seen, unseen = (objective.prepare(raw.take(rows), WORDS, noise()) for rows in parts)
    models = built(objective, READER)
    learn(objective, models, [seen], steps=steps, lr=0.01)
    total, weight = objective.loss(models, unseen, noise())[term]
    return (total / weight).item()


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return 10 + torch.randint(6, shape, generator=noise(seed))


@pytest.mark.row("TSK-07", clause="input formats of each task equal stored golden ones")
def test_a_question_and_its_text_are_one_row_with_a_tag_for_each_token() -> None:
    tags = torch.tensor([[-1, -1, 0, 1, 1, 0]])
    raw = Batch(tokens=torch.tensor([[20, WORDS.sep, 30, 31, 32, 33]]), frame=Frame(), labels=RowLabels(tags=tags))
    ready = TokenLabels(classes=2).prepare(raw, WORDS, noise())
    assert ready.tokens.tolist() == [[20, WORDS.sep, 30, 31, 32, 33]]
    assert ready.weight.tolist() == [[0, 0, 1, 1, 1, 1]]
    assert ready.targets[0, 2:].tolist() == [0, 1, 1, 0]


@pytest.mark.slow
@pytest.mark.row("TSK-07", clause="each head learns its toy task")
@pytest.mark.parametrize("order", ["one", "both"], ids=["entailment", "similarity"])
def test_a_word_of_one_text_is_found_in_the_other(order: str) -> None:
    label = torch.randint(2, (ROWS,), generator=noise(3))
    premise = torch.stack([torch.randperm(6, generator=noise(row))[:3] + 10 for row in range(ROWS)])
    hypothesis = premise[:, :1].where(label[:, None] == 1, premise[:, 2:])  # the third word is taken out of the premise
    raw = pairs(premise[:, :2], hypothesis, label)
    assert unseen_loss(SentencePairs(classes=2, order=order), raw, "label", steps=150) < 0.35  # log 2 = 0.69 by chance


@pytest.mark.slow
@pytest.mark.row("TSK-07", clause="each head learns its toy task")
def test_the_tokens_of_the_answer_are_marked_in_the_text() -> None:
    question, text = drawn(ROWS, 1, seed=5), drawn(ROWS, 6, seed=6)
    tags = torch.cat((torch.full((ROWS, 1), -1), (text == question).long()), dim=1)
    tokens = torch.cat((question, text), dim=1)
    frame = Frame(valid=torch.ones_like(tokens, dtype=torch.bool))
    raw = Batch(tokens=tokens, frame=frame, labels=RowLabels(tags=tags))
    assert unseen_loss(TokenLabels(classes=2), raw, "tags", steps=200) < 0.2  # 0.45 by the frequency of 1 in 6
