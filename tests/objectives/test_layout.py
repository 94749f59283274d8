"""`lay_out` puts the special tokens around a text where `prepare` puts them in training."""

import pytest
import torch
from tests.objectives.every import LABELS
from tests.objectives.small import WORDS, ids, noise

from anyformer.core import Frame
from anyformer.data.batching.batch import Batch, RowLabels
from anyformer.objectives.both_directions import BothDirectionsObjective
from anyformer.objectives.classify import Classify
from anyformer.objectives.masked_words import MaskedWords
from anyformer.objectives.next_token import NextToken
from anyformer.objectives.objective import Objective
from anyformer.objectives.permutation import PermutationLM
from anyformer.objectives.prefix_lm import PrefixLM
from anyformer.objectives.regress import Regress
from anyformer.objectives.replaced_token import ReplacedToken
from anyformer.objectives.seq2seq import Seq2Seq
from anyformer.objectives.token_labels import TokenLabels
from anyformer.objectives.transformations import Layout
from anyformer.objectives.word_order import WordOrder

TEXT = ids(9, 3)
MARKS = (WORDS.bos, WORDS.eos, WORDS.cls, WORDS.sep)
PACKED = [NextToken(), PrefixLM(), MaskedWords(), WordOrder(), PermutationLM(), ReplacedToken()]
ALONE = [
    *PACKED,
    BothDirectionsObjective(),
    Classify(classes=3),
    Classify(classes=3, layout=Layout(form="bert")),
    Regress(),
    TokenLabels(classes=3),
]


def outline(tokens: list[int]) -> list[int]:
    """The special tokens at their positions; words, corrupted or not, are alike."""
    return [token if token in MARKS else WORDS.unk for token in tokens]


def trained_on(objective: Objective, raw: Batch) -> list[int]:
    return objective.prepare(raw, WORDS, noise()).tokens[0].tolist()


@pytest.mark.parametrize("objective", ALONE, ids=lambda objective: objective.kind)
def test_a_text_in_a_row_of_its_own_is_laid_out_as_in_training(objective: Objective) -> None:
    labels = RowLabels(**{name: LABELS[name][:1] for name in ("label", "number", "tags")})
    shown = trained_on(objective, Batch(tokens=torch.tensor([TEXT]), frame=Frame(), labels=labels))
    expected = objective.lay_out(TEXT, WORDS, packed=False)
    assert outline(shown[: len(expected)]) == outline(expected)
    assert set(shown[len(expected) :]) <= {WORDS.mask}  # the queries of a permutation


@pytest.mark.parametrize("objective", PACKED, ids=lambda objective: objective.kind)
def test_a_packed_text_is_laid_out_as_in_training(objective: Objective) -> None:
    tokens = torch.tensor([[*TEXT, WORDS.eos]])
    shown = trained_on(objective, Batch(tokens=tokens, frame=Frame(segments=torch.zeros_like(tokens))))
    expected = objective.lay_out(TEXT, WORDS, packed=True)
    assert outline(shown[: len(expected)]) == outline(expected)
    assert set(shown[len(expected) :]) <= {WORDS.mask}


def test_pairs_of_sentences_have_rows_of_their_own_even_if_the_data_are_packed() -> None:
    for objective in (MaskedWords(sentences="next_sentence"), WordOrder(sentences="three_way")):
        assert objective.lay_out(TEXT, WORDS, packed=True) == [WORDS.cls, *TEXT, WORDS.sep]


def test_the_source_of_a_pair_is_laid_out_as_in_training() -> None:
    raw = Batch(tokens=torch.tensor([TEXT]), frame=Frame())
    source = Seq2Seq().prepare(Batch(tokens=raw.tokens, frame=Frame(), source=raw), WORDS, noise()).source
    assert source is not None
    assert source.tokens[0].tolist() == Seq2Seq().lay_out(TEXT, WORDS, packed=False)
