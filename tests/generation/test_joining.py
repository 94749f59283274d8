"""Requests join a batch that is being decoded, between two rounds, and get the tokens that they get alone."""

from typing import Any

import pytest
from tests.generation.emulated import in_rounds
from tests.generation.small import writer

from anyformer.core import Model
from anyformer.generation.beam.beam_search import Beam, search
from anyformer.generation.decoding import RequestQueue
from anyformer.generation.engine import Engine, Request
from anyformer.generation.samplers.greedy import Greedy
from anyformer.generation.samplers.repetition_penalty import RepetitionPenalty
from anyformer.generation.samplers.sample import Sample

BOLD = Sample(temperature=3.0, filters=(RepetitionPenalty(penalty=1.2),))
REQUESTS = [Request(prompt=[3 + row, 7, 2][: 1 + row % 3], seed=row) for row in range(11)]


def eager(model: Model, **options: Any) -> Engine:
    return Engine(model, **options)


def rounds(model: Model, **options: Any) -> Engine:
    return in_rounds(model, **options)[0]


@pytest.fixture
def joins(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many requests joined a batch of others, each time."""
    counts, take = list[int](), RequestQueue.take

    def counted(queue: RequestQueue, live: int) -> list[int]:
        rows = take(queue, live)
        counts.extend([len(rows)] if live and rows else [])
        return rows

    monkeypatch.setattr(RequestQueue, "take", counted)
    return counts


@pytest.mark.parametrize("sampler", [pytest.param(Greedy(), marks=pytest.mark.slow), BOLD], ids=["greedy", "sample"])
def test_a_request_that_joins_gets_the_tokens_that_it_gets_alone(sampler: Any, joins: list[int]) -> None:
    model = writer()
    alone = Engine(model, max_len=40)
    stop = alone.generate(REQUESTS[1:2], sampler, max_new=6)[0].tokens[5:6]
    expected = [alone.generate([request], sampler, max_new=20, stop=stop)[0] for request in REQUESTS]
    for build in (eager, rounds):
        joins.clear()
        assert build(model, max_len=40, batch=4).generate(REQUESTS, sampler, max_new=20, stop=stop) == expected
        assert joins


def test_a_sentence_that_joins_finds_what_it_finds_alone(joins: list[int]) -> None:
    model, beam = writer(), Beam(width=2, best=2, patience="full")
    requests = [Request(prompt=[3, 7, 2, 5, 8, 4][: 1 + row]) for row in range(6)]  # which end one after the other
    alone = [search(Engine(model, max_len=12), [each], beam, max_new=12)[0] for each in requests]
    for build in (eager, rounds):
        joins.clear()
        together = search(build(model, max_len=12, batch=8), requests, beam, max_new=12)
        assert [[each.tokens for each in row] for row in together] == [[each.tokens for each in row] for row in alone]
        assert joins


def test_a_request_that_needs_more_room_than_the_batch_has_waits() -> None:
    queue = RequestQueue({0: 64, 1: 64, 2: 64, 3: 128}, 2, mixes=True)
    assert queue.take(0) == [0, 1] and queue.room == 64
    assert queue.take(2) == [] and queue.take(1) == [2]
    assert not queue.joins and queue.take(1) == []
    assert queue.take(0) == [3] and queue.room == 128
