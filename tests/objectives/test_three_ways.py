"""Decoders learn next words, encoders hidden ones, encoder-decoders spans: each beats guessing by frequency."""

import pytest
import torch
from tests.objectives.reading import pair_model
from tests.objectives.small import WORDS, built, learn, model, noise

from anyformer.core import Frame, ModelSpec
from anyformer.data.batching.batch import Batch
from anyformer.models import Decoder, Encoder
from anyformer.objectives.masked_words import MaskedWords
from anyformer.objectives.next_token import NextToken
from anyformer.objectives.objective import Objective
from anyformer.objectives.permutation import PermutationLM
from anyformer.objectives.prefix_lm import PrefixLM
from anyformer.objectives.seq2seq import Seq2Seq
from anyformer.objectives.span_corruption import SpanCorruption
from anyformer.objectives.word_order import WordOrder
from anyformer.parts.positions.sinusoidal import Sinusoidal

PAIRS = [
    (NextToken(), model(Decoder)),
    (MaskedWords(), model(Encoder, position=Sinusoidal())),
    pytest.param(PermutationLM(), model(Encoder, position=Sinusoidal()), marks=pytest.mark.slow),
    pytest.param(SpanCorruption(), pair_model(), marks=pytest.mark.slow),
]
EVERY = [NextToken(), PrefixLM(), MaskedWords(), WordOrder(), PermutationLM(), SpanCorruption(), Seq2Seq()]


def counting(rows: int, seed: int) -> Batch:
    """Rows that count up from anywhere: each word follows from any other."""
    start = torch.randint(30, (rows, 1), generator=noise(seed))
    return Batch(tokens=10 + (start + torch.arange(14)) % 30, frame=Frame(valid=torch.ones(rows, 14, dtype=torch.bool)))


def frequency_loss(ready: Batch) -> float:
    """The entropy of the words that are asked for."""
    asked = ready.targets[ready.weight > 0]
    chance = torch.bincount(asked) / len(asked)
    return -chance[asked].log().mean().item()


@pytest.mark.row("PRE-03", clause="masked words, next token and span corruption share the interface")
@pytest.mark.row(
    "PRE-04",
    clause=(
        "decoder with LM, encoder with MLM, encoder-decoder with spans",
        "each of the three trains on a tiny corpus to below unigram entropy",
    ),
)
@pytest.mark.row("PRE-11", clause="learns P(s | s_mask): hidden tokens from the masked text")
@pytest.mark.parametrize(("objective", "spec"), PAIRS, ids=lambda value: value.kind)
def test_every_way_learns_more_than_frequencies(objective: Objective, spec: ModelSpec) -> None:
    models = built(objective, spec)
    batches = [objective.prepare(counting(32, seed), WORDS, noise(seed)) for seed in range(40)]
    learn(objective, models, batches, steps=120, lr=1e-2)
    fresh = objective.prepare(counting(200, 99), WORDS, noise(99))
    total, count = objective.loss(models, fresh, noise())["words"]
    assert (total / count).item() < 0.8 * frequency_loss(fresh)


@pytest.mark.row("PRE-04")
@pytest.mark.parametrize("objective", EVERY, ids=lambda objective: objective.kind)
def test_adapting_twice_is_adapting_once(objective: Objective) -> None:
    for spec in (model(Encoder), model(Decoder), pair_model()):
        try:
            adapted = objective.adapt(spec)
        except Exception as refusal:
            assert type(refusal).__name__ == "SpecError" and "bjective.kind" in str(refusal)
            continue
        assert objective.adapt(adapted) == adapted
