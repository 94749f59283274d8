"""Pairs share rows: none is cut in two, both sides carry the same number, and objectives read what they read alone."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.data.corpus import ready
from torch import Tensor

from anyformer.data.batching.batch import Batch
from anyformer.data.batching.packings.bucket import Bucket
from anyformer.data.preparation.shards import Prepared
from anyformer.data.record import Record
from anyformer.objectives.seq2seq import Seq2Seq
from anyformer.training.loop.feed import Loader

CONTEXT, ROWS = 40, 6
Said = list[tuple[tuple[int, ...], ...]]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Prepared]:
    """Some sides are longer than the context, some fill it to the last place."""
    rng = np.random.default_rng(0)
    sizes = [(38, 38), (39, 37), (37, 60), (90, 3), *rng.integers(1, 20, (500, 2)).tolist()]
    records = [
        Record(f"{place}:".ljust(source, "s")[:source], target=f"{place}:".ljust(target, "t")[:target])
        for place, (source, target) in enumerate(sizes)
    ]
    home = tmp_path_factory.mktemp("prepared")
    return {form: ready(home / form, records, context=CONTEXT, packing=form, valid=0.0) for form in ("pack", "bucket")}


def batches(prepared: Prepared) -> list[Batch]:
    loader = Loader(prepared=prepared, batch_tokens=ROWS * 2 * CONTEXT, epochs=1)
    return [batch for batch, _ in loader]


def numbered(side: Batch) -> Tensor:
    """[b t]: the number of each token's text in its row; -1: none."""
    return side.counted.long() - 1 if side.frame.segments is None else side.frame.segments


def said(prepared: Prepared) -> Said:
    """What an objective makes of each pair: source, inputs, targets, weights and positions."""
    found = []
    for batch in batches(prepared):
        ready = Seq2Seq().prepare(batch, prepared.words, torch.Generator())
        target, source = numbered(ready), numbered(ready.source)
        for row in range(len(ready.tokens)):
            for number in range(int(target[row].max()) + 1):
                here, there = target[row] == number, source[row] == number
                sides = (ready.source.tokens[row, there], ready.tokens[row, here], ready.targets[row, here])
                found.append(tuple(tuple(values.tolist()) for values in (*sides, ready.weight[row, here])))
    return sorted(found)


def test_an_objective_reads_each_pair_as_in_a_row_of_its_own(both: dict[str, Prepared]) -> None:
    packed, alone = (said(both[form]) for form in ("pack", "bucket"))
    assert packed == alone and len(packed) == both["pack"].counts["train"]["samples"] > 200
    ends = {pair[2][-1] for pair in packed}
    assert both["pack"].words.eos in ends and len(ends) > 1  # what was cut does not end
    assert all(pair[0][-1] == both["pack"].words.sep for pair in packed)


def test_batches_have_one_shape_and_little_padding(both: dict[str, Prepared]) -> None:
    *full, last = batches(both["pack"])
    assert {side.tokens.shape for batch in full for side in (batch, batch.source)} == {(ROWS, CONTEXT)}
    assert last.tokens.shape[1] == CONTEXT and len(full) > 8
    filled = torch.stack([side.counted.float().mean() for batch in full for side in (batch, batch.source)])
    assert filled.mean() > 0.85


def test_both_sides_have_as_many_texts_each_from_place_0_on(both: dict[str, Prepared]) -> None:
    for batch in batches(both["pack"]):
        assert numbered(batch).amax(1).equal(numbered(batch.source).amax(1))
        for side in (batch, batch.source):
            segments, positions, valid = side.frame.segments, side.frame.positions, side.counted
            assert valid.equal(segments >= 0) and side.truncated is None
            for numbers, places in zip(segments, positions, strict=True):
                counts = torch.bincount(numbers[numbers >= 0]).tolist()
                assert places[numbers >= 0].tolist() == [place for count in counts for place in range(count)]


def test_auto_gives_pairs_a_row_each(tmp_path: Path) -> None:
    assert ready(tmp_path / "data", [Record("a", target="b")] * 3, valid=0.0).packing == Bucket()
