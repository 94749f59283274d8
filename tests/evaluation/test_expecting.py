"""How much words were expected: document by document, whatever stands beside them."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.evaluation.runs import ANIMALS, SENTENCES, run_of
from torch import Tensor

from anyformer.core import Frame, Head, Model, Out, State
from anyformer.data.record import Record
from anyformer.errors import DataError
from anyformer.evaluation.document_likelihood import document_likelihoods
from anyformer.evaluation.metrics.documents import ContextMetrics, LanguageMetrics, PositionMetrics
from anyformer.evaluation.metrics.metric import Job
from anyformer.objectives.objective import Predictor


@pytest.fixture(scope="module")
def trained() -> Predictor:
    return run_of("language").trained("cpu")


LONG = " ".join(SENTENCES)


def job(trained: Predictor, texts: list[str]) -> Job:
    return Job(predictor=trained, records=[Record(text=text) for text in texts])


def alone(trained: Predictor, text: str) -> list[float]:
    """-log P of each word of a short text and of its end, by one plain call."""
    words = trained.tokenizer.words
    ids = [*trained.tokenizer.encode(text), words.eos]
    with torch.no_grad():
        logs = trained.model(torch.tensor([[words.bos, *ids[:-1]]]), Frame()).y[0].log_softmax(-1)
    return [-float(logs[place, word]) for place, word in enumerate(ids)]


def test_documents_do_not_see_each_other(trained: Predictor) -> None:
    texts = [SENTENCES[0], LONG, SENTENCES[5], "the cat"]
    found = list(document_likelihoods(trained, texts))
    for place in (0, 2, 3):
        assert found[place].nats == pytest.approx(alone(trained, texts[place]), abs=1e-5)


def test_every_word_of_a_long_document_counts_once_with_a_long_past(trained: Predictor) -> None:
    (found,) = document_likelihoods(trained, [LONG])
    assert len(found.nats) == len(trained.tokenizer.encode(LONG)) + 1
    assert found.before[:32].tolist() == list(range(32)) and (found.before[32:] >= 16).all()
    ids = trained.tokenizer.encode(LONG)
    tail = trained.tokenizer.decode(ids[16:48])
    assert found.nats[32:48] == pytest.approx(alone(trained, tail)[16:32], abs=1e-5)


def test_the_loss_is_that_of_validation(trained: Predictor) -> None:
    run = run_of("language")
    valid = [line["valid_loss"] for line in run.metrics() if "valid_loss" in line]
    assert run.evaluate()["loss"].value == pytest.approx(valid[-1], abs=1e-4)


def test_bits_are_for_each_byte_of_the_text(trained: Predictor) -> None:
    found = LanguageMetrics().measure(job(trained, SENTENCES[:4]))
    nats = sum(sum(alone(trained, text)) for text in SENTENCES[:4])
    size = sum(len(text.encode()) for text in SENTENCES[:4])
    assert found["bits_per_byte"].value == pytest.approx(nats / math.log(2) / size, rel=1e-5)


def test_words_that_nobody_knows_have_no_bits(trained: Predictor) -> None:
    assert "bits_per_byte" not in LanguageMetrics().measure(job(trained, ["the zebra jumps"]))


class Same(Head):
    def forward(self, h: Tensor, frame: Frame) -> Tensor:
        return h


class Knowing(Model):
    """Knows a rhythm (the, and two animals, again and again) as far as the past that it sees tells where it is."""

    def __init__(self, words: dict[str, int], size: int):
        super().__init__()
        self.words, self.size, self.head = words, size, Same()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def output_head(self) -> Head:
        return self.head

    def forward(self, tokens: Tensor, frame: Frame, state: State | None = None, *, logits: bool = True) -> Out:
        last, bos = tokens == self.words["the"], tokens == self.words["<bos>"]
        before, begun = last.roll(1, dims=1), bos.roll(1, dims=1)  # of the token before
        chance = torch.zeros_like(tokens, dtype=torch.float)
        chance[~last & ~before & ~begun & ~bos] = 1.0  # two animals: "the" comes
        chance[~last & begun & ~bos] = 0.5  # one animal, the first or the second
        chance[bos] = 1 / 3
        found = torch.full((*tokens.shape, self.size), 1e-9)
        for animal in ANIMALS:
            found[..., self.words[animal]] = (1 - chance) / 4
        found[..., self.words["the"]] = chance
        return Out(found.clamp(min=1e-9).log())


@pytest.fixture(scope="module")
def knowing(trained: Predictor) -> Predictor:
    names = {name: trained.tokenizer.encode(name)[0] for name in ("the", *ANIMALS)}
    words = trained.tokenizer.words
    return replace(trained, models={"model": Knowing({**names, "<bos>": words.bos}, words.size)})


RNG = random.Random(0)
RHYTHMS = [" ".join(" ".join(("the", *RNG.choices(ANIMALS, k=2))) for _ in range(40)) for _ in range(12)]


@pytest.mark.row("RNN-21")
def test_the_loss_by_position_is_higher_where_a_window_begins(knowing: Predictor) -> None:
    found = PositionMetrics().measure(job(knowing, RHYTHMS))
    assert list(found) == [f"loss_at_position_{place}" for place in (1, 2, 4, 8, 16, 32)]
    later = (2 * math.log(4) + 0) / 3
    assert found["loss_at_position_1"].value > found["loss_at_position_8"].value + 0.3
    assert found["loss_at_position_8"].value == pytest.approx(later, abs=0.12)


def test_the_loss_by_position_is_that_of_words_without_a_past(knowing: Predictor) -> None:
    found = PositionMetrics().measure(job(knowing, RHYTHMS))
    documents = list(document_likelihoods(knowing, RHYTHMS, overlap=0.0))
    nats, before = (np.concatenate([getattr(it, name) for it in documents]) for name in ("nats", "before"))
    for low in (1, 4, 16):
        mine = nats[(before + 1 >= low) & (before + 1 < 2 * low)]
        assert found[f"loss_at_position_{low}"].value == pytest.approx(mine.mean())


@pytest.mark.row("CLM-19", clause="the rise in loss is measured as the context is cut to c tokens")
def test_a_longer_past_helps_until_it_is_long_enough(knowing: Predictor) -> None:
    found = ContextMetrics().measure(job(knowing, RHYTHMS))
    loss = {size: found[f"loss_with_context_{size}"].value for size in (1, 2, 4, 8, 16, 31)}
    one = (math.log(4) + math.log(8) + math.log(2)) / 3  # the word before tells half of it
    assert loss[1] == pytest.approx(one, abs=0.1) and loss[2] == pytest.approx(2 * math.log(4) / 3, abs=0.15)
    assert loss[2] == pytest.approx(loss[31]) and found["context_used"].value == 2


def test_too_short_documents_have_no_past_to_be_cut(knowing: Predictor) -> None:
    with pytest.raises(DataError, match="Give longer ones"):
        ContextMetrics().measure(job(knowing, ["the cat"]))
