"""A stream: lanes that go on from batch to batch, through every token of a split once an epoch."""

from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.data.corpus import documents, ready
from tests.data.test_loader import rows

from anyformer.data.batching.batch import Batch
from anyformer.data.batching.packings.stream import cut_stream
from anyformer.data.batching.row_plan import LoaderPosition
from anyformer.data.preparation.shards import Prepared
from anyformer.data.record import Record
from anyformer.errors import DataError
from anyformer.objectives.next_token import next_words
from anyformer.training.loop.feed import Loader

CONTEXT, BATCH, LANES = 16, 70, 4


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    lengths = np.random.default_rng(0).integers(1, 90, 40)
    return ready(tmp_path_factory.mktemp("stream"), documents(lengths), context=CONTEXT, packing="stream", valid=0.1)


def epoch(prepared: Prepared, number: int = 0, **options: object) -> list[Batch]:
    loader = Loader(prepared=prepared, batch_tokens=BATCH, start=LoaderPosition(number), epochs=number + 1, **options)  # type: ignore[arg-type]
    return [batch for batch, _ in loader]


def lane(batches: list[Batch], row: int) -> list[int]:
    """What one lane reads in an epoch."""
    return [token for batch in batches for token in batch.tokens[row][batch.frame.valid[row]].tolist()]


def test_a_lane_goes_on_where_it_ended_and_all_lanes_together_read_everything_once(prepared: Prepared) -> None:
    stream = prepared.split("train").sides["tokens"].tokens.array.tolist()
    for number in range(3):
        batches = epoch(prepared, number)
        assert all(len(batch.tokens) == LANES for batch in batches)
        read = [token for row in range(LANES) for token in lane(batches, row)]
        turn = next(turn for turn in range(len(stream)) if stream[turn:] + stream[:turn] == read)
        assert number or turn  # the place where lanes begin moves
    assert lane(epoch(prepared, 0), 0) != lane(epoch(prepared, 1), 0)
    assert [token for row in range(LANES) for token in lane(epoch(prepared, shuffle=False), row)] == stream


def test_positions_count_from_the_start_of_the_document_and_segments_tell_documents_apart(prepared: Prepared) -> None:
    end = prepared.words.eos
    for row in range(LANES):
        batches = epoch(prepared)
        position = np.concatenate([it.frame.positions[row][it.frame.valid[row]] for it in batches])
        tokens = np.array(lane(batches, row))
        assert (position[1:] == np.where(tokens[:-1] == end, 0, position[:-1] + 1)).all()
    for batch in batches:
        frame = batch.frame
        here = frame.valid[:, 1:]
        grows = (frame.segments[:, 1:] - frame.segments[:, :-1])[here]
        assert (grows == (frame.positions[:, 1:] == 0)[here]).all() and (frame.segments[:, 0] <= 0).all()


def test_the_first_input_of_a_row_is_the_token_before_it(prepared: Prepared) -> None:
    batches = [next_words(batch, prepared.words) for batch in epoch(prepared)]
    for before, batch in pairwise(batches):
        begins = batch.frame.positions[:, 0] == 0
        expected = before.targets[:, -1].masked_fill(begins, prepared.words.bos)
        there = batch.frame.valid[:, 0]
        assert batch.tokens[:, 0][there].equal(expected[there])
        assert (batch.continuation.before < 0)[there].equal(begins[there])


@pytest.mark.parametrize("options", [{"workers": 2}, {"start": LoaderPosition(0, 0, 3)}])
def test_workers_and_where_one_starts_change_nothing(prepared: Prepared, options: dict[str, object]) -> None:
    plain = list(islice(Loader(prepared=prepared, batch_tokens=BATCH), 70))
    assert plain[-1][1].epoch > 1
    others = list(islice(Loader(prepared=prepared, batch_tokens=BATCH, **options), 60))  # type: ignore[arg-type]
    skipped = 3 if "start" in options else 0
    for mine, theirs in zip(others, plain[skipped:], strict=False):
        assert mine[1] == theirs[1] and rows(mine[0]) == rows(theirs[0])


def test_more_lanes_than_tokens_leave_some_empty() -> None:
    strip = cut_stream(tokens=3, rows=8, width=4, batch=0)
    assert strip.lengths.sum() == 3 and strip.lengths.max() == 1


def test_a_document_longer_than_the_context_stays_whole(tmp_path: Path) -> None:
    prepared = ready(tmp_path, [Record("x" * 100), Record("y")], context=CONTEXT, packing="stream", valid=0.0)
    assert len(prepared.split("train")) == 2 and prepared.longest == 101
    assert prepared.counts["train"]["long"] == 0


def test_pairs_cannot_be_a_stream(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="packing=stream is for plain documents, but these have pairs"):
        ready(tmp_path, [Record("a", target="b")], packing="stream", valid=0.0)


def test_words_begin_where_documents_do(prepared: Prepared) -> None:
    for batch in epoch(prepared):
        starts = batch.word_starts
        assert starts[(batch.frame.positions == 0) & batch.frame.valid].all() and not starts[~batch.frame.valid].any()
        assert torch.isin(batch.continuation.row, torch.arange(LANES)).all()
