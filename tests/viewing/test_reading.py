"""A text goes through the model as its objective laid it out in training."""

from pathlib import Path

import pytest
import torch
from tests.viewing.small import TEXT, VOCAB, decoder, encoder, pair, run

from anyformer.core import Frame
from anyformer.data.batching.batch import Batch, RowLabels
from anyformer.errors import SpecError
from anyformer.objectives.classify import Classify
from anyformer.objectives.masked_words import MaskedWords
from anyformer.objectives.next_token import NextToken
from anyformer.objectives.seq2seq import Seq2Seq
from anyformer.objectives.token_labels import TokenLabels
from anyformer.run import Run
from anyformer.viewing.tokenised_text import read

ONE_TEXT = [
    (NextToken(), decoder(max_len=64)),
    (Classify(classes=3), encoder()),
    (TokenLabels(classes=3), encoder()),
    (MaskedWords(share=0.01), encoder()),
]


@pytest.mark.parametrize(("objective", "spec"), ONE_TEXT, ids=lambda value: value.kind)
def test_one_text_is_read_as_in_training(objective, spec, tmp_path: Path) -> None:
    folder, _ = run(tmp_path / "run", spec, objective)
    found = read(Run.open(folder).trained("cpu"), TEXT)
    tokenizer = Run.open(folder).tokenizer
    ids = torch.tensor([tokenizer.encode(TEXT)])
    raw = Batch(tokens=ids, frame=Frame(), labels=RowLabels(label=torch.zeros(1).long(), tags=torch.zeros_like(ids)))
    ready = objective.prepare(raw, tokenizer.words, torch.Generator().manual_seed(1))
    expected = ready.tokens[0].tolist()
    if objective.kind == "next_token":  # the last token is read too: it has something to look at
        expected = [*expected[: len(ids[0])], ids[0, -1].item()]
    assert found.tokens == expected and found.source is None and len(found.names) == len(expected)


def test_a_packed_encoder_is_shown_no_separator_that_it_never_met(tmp_path: Path) -> None:
    folder, _ = run(tmp_path / "run", encoder(), MaskedWords(share=0.01), packing="pack")
    predictor = Run.open(folder).trained("cpu")
    ids, words = torch.tensor([predictor.tokenizer.encode(TEXT)]), predictor.tokenizer.words
    ended = torch.cat((ids, torch.tensor([[words.eos]])), dim=1)  # as the data mark the end of a packed document
    raw = Batch(tokens=ended, frame=Frame(segments=torch.zeros_like(ended)))
    expected = MaskedWords(share=0.01).prepare(raw, words, torch.Generator().manual_seed(1)).tokens[0].tolist()
    assert read(predictor, TEXT).tokens == expected and words.sep not in expected


@pytest.mark.parametrize("target", [None, "it was"])
def test_a_pair_is_read_with_its_target_or_with_what_the_model_writes(target: str | None, tmp_path: Path) -> None:
    folder, _ = run(tmp_path / "run", pair(), Seq2Seq())
    found = read(Run.open(folder).trained("cpu"), "the animal", target)
    words = Run.open(folder).tokenizer.words
    assert found.source is not None and found.source[-1] == words.sep and found.tokens[0] == words.bos
    assert found.written[:-1] == found.names[1:] and found.written[-1] == "<eos>"
    assert target is None or found.names[1:] == ["it", "was"]


def test_what_does_not_fit_is_left_out_and_counted(tmp_path: Path) -> None:
    folder, _ = run(tmp_path / "run", decoder(max_len=16), NextToken())
    found = read(Run.open(folder).trained("cpu"), " ".join(["it"] * 40))
    assert len(found.tokens) <= 16 and found.left_out == 40 - (len(found.tokens) - 1)


def test_nothing_and_a_target_for_one_text_are_refused(tmp_path: Path) -> None:
    folder, _ = run(tmp_path / "run", encoder(vocab=VOCAB))
    with pytest.raises(SpecError, match="is empty"):
        read(Run.open(folder).trained("cpu"), "  ")
    with pytest.raises(SpecError, match="one text into another"):
        read(Run.open(folder).trained("cpu"), "it", "es")
