"""A rank's share of a last batch may have no row: every objective gives a loss of nothing then, and no error."""

import pytest
import torch
from tests.objectives.reading import pair_model
from tests.objectives.small import WORDS, built, laid, model, noise

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

CASES = [
    (NextToken(), model(Decoder)),
    (PrefixLM(), model(Decoder)),
    (MaskedWords(), model(Encoder)),
    (MaskedWords(sentences="next_sentence"), model(Encoder)),
    (WordOrder(), model(Encoder)),
    (PermutationLM(), model(Encoder)),
    (SpanCorruption(), pair_model()),
    (SpanCorruption(), model(Decoder)),
    (Seq2Seq(), pair_model()),
    (Seq2Seq(), model(Decoder)),
]


@pytest.mark.parametrize(("objective", "spec"), CASES, ids=lambda value: value.kind)
def test_no_rows_are_no_loss(objective: Objective, spec: ModelSpec) -> None:
    tokens = torch.zeros(0, 9, dtype=torch.long)
    frame = Frame(valid=tokens.bool())
    source = Batch(tokens=tokens, frame=frame) if isinstance(objective, Seq2Seq) else None
    ready = objective.prepare(Batch(tokens=tokens, frame=frame, source=source), WORDS, noise())
    terms = objective.loss(built(objective, spec), ready, noise())
    assert all(term.sum == 0 and term.weight == 0 for term in terms.values())
    assert all(count == 0 for count in objective.counts(ready).values())


def test_a_lone_text_has_no_stranger_to_meet() -> None:
    for seed in range(8):
        ready = MaskedWords(sentences="next_sentence").prepare(laid([[11, 12, 13, 14]]), WORDS, noise(seed))
        assert ready.labels.label.tolist() == [0]
