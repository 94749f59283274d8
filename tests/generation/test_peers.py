"""The engine and beam search write what Hugging Face's `generate` writes with the same weights."""

from functools import cache
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.generation.peers import DECODERS, TRANSLATORS, cut, prompts, twins, written

from anyformer.generation.beam.beam_search import Beam, search
from anyformer.generation.beam.penalties import Power
from anyformer.generation.engine import Engine, Request

NEW, STOP, LENGTHS = 12, 5, (3, 7, 1, 5)
NAMES = [*DECODERS, *TRANSLATORS]
BEAMS = [
    (1.0, "likely"), (0.6, "likely"), (0.0, "likely"), (2.0, "likely"), (-1.0, "likely"), (1.0, "full"),
    (0.5, "certain"),
]  # fmt: skip
"""Exponent of the length penalty, and when a search ends."""
models = pytest.mark.parametrize("name", NAMES)


def beams() -> list[Any]:
    """Every setting for every model: each of both at least once in the fast suite, the other pairs in the slow one."""
    fast = {(NAMES[place % len(NAMES)], *setting) for place, setting in enumerate(BEAMS)}
    pairs = [(name, *setting) for name in NAMES for setting in BEAMS]
    return [pytest.param(*pair, marks=() if pair in fast else pytest.mark.slow) for pair in pairs]


@pytest.fixture(scope="module")
def peers(transformers: ModuleType) -> Any:
    return cache(lambda name: twins(transformers, name))


def asked(name: str, rows: list[list[int]]) -> list[Request]:
    """Rows of tokens as prompts, or for a translator as sources."""
    return [Request(source=row) if name in TRANSLATORS else Request(prompt=row) for row in rows]


def engine(model: Any) -> Engine:
    return Engine(model, max_len=24, bos=0)


@pytest.mark.row("TSK-04", clause="text is continued by sampling, greedily or by beam search")
@pytest.mark.row("RNN-12", clause="at test time the decoder reads its own outputs")
@pytest.mark.row("TRF-05", clause="an autoregressive head predicts the next token")
@pytest.mark.row(
    "TRF-17",
    clause=(
        "the output of step t is appended to the decoder input of step t + 1",
        "greedy loop equals transformers generate(do_sample=False) on GPT-2",
    ),
)
@models
@pytest.mark.row("TSK-17")
def test_greedy_words_of_a_ragged_batch_are_theirs(peers: Any, name: str) -> None:
    ours, theirs = peers(name)
    rows = prompts(LENGTHS)
    got = engine(ours).generate(asked(name, rows), max_new=NEW)
    expected = written(theirs, rows, NEW)
    assert [list(row.tokens) for row in got] == expected
    assert len({word for row in expected for word in row}) > 3  # not the same word again and again


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ("gpt2", "t5") else pytest.mark.slow) for name in NAMES]
)
def test_rows_stop_where_theirs_do(peers: Any, name: str) -> None:
    ours, theirs = peers(name)
    rows = prompts(LENGTHS)
    stop = written(theirs, rows, NEW)[1][4]
    got = engine(ours).generate(asked(name, rows), max_new=NEW, stop=[stop])
    expected = [cut(row, stop) for row in written(theirs, rows, NEW, eos_token_id=stop)]
    assert [row.tokens for row in got] == expected
    assert got[1].finish == "stop"


@pytest.mark.row("TSK-04", clause="text is continued by sampling, greedily or by beam search")
@pytest.mark.row("TSK-08", clause="keeps the best beams per step, scored with a length penalty")
@pytest.mark.parametrize(("name", "exponent", "patience"), beams())
@pytest.mark.row("WMT-06")
def test_the_best_of_four_beams_are_theirs(peers: Any, name: str, exponent: float, patience: Any) -> None:
    ours, theirs = peers(name)
    rows = prompts(LENGTHS)
    stop = written(theirs, rows, NEW)[0][2]  # a word that does come up
    beam = Beam(width=4, best=3, penalty=Power(exponent=exponent), patience=patience)
    got = search(engine(ours), asked(name, rows), beam, max_new=NEW, stop=[stop])
    early = {"likely": False, "full": True, "certain": "never"}[patience]
    options = {"num_beams": 4, "num_return_sequences": 3, "length_penalty": exponent, "early_stopping": early}
    for request, row in zip(rows, got, strict=True):
        expected = written(theirs, [request], NEW, eos_token_id=stop, **options)
        assert [hypothesis.tokens for hypothesis in row] == [cut(words, stop) for words in expected]


@pytest.mark.parametrize("name", ["llama", "marian"])
def test_beams_of_a_ragged_batch_are_theirs_with_their_scores(peers: Any, name: str) -> None:
    ours, theirs = peers(name)
    rows = prompts(LENGTHS)
    options = {"num_beams": 4, "num_return_sequences": 4, "output_scores": True, "return_dict_in_generate": True}
    for row, found in zip(rows, search(engine(ours), asked(name, rows), Beam(best=4), max_new=NEW), strict=True):
        theirs.generation_config.pad_token_id = 0
        words = theirs.generate(torch.tensor([row]), max_new_tokens=NEW, do_sample=False, **options)
        start = words.sequences.shape[1] - NEW
        assert [list(each.tokens) for each in found] == words.sequences[:, start:].tolist()
        assert [each.score for each in found] == pytest.approx(words.sequences_scores.tolist(), abs=1e-4)
