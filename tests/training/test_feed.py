"""When batches are fetched: while the device works, and never so that an error is raised before its turn."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from tests.training.test_trainer import trainer_of

from anyformer.data.bounds import bounds_of
from anyformer.errors import DataError
from anyformer.training.feed import Coming, Ready, pieces
from anyformer.training.figures import Figures


def test_the_next_batch_is_fetched_before_the_figures_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    read, fetch = Figures.read, Coming.fetch

    def noted(name: str, method: Any) -> Any:
        return lambda self: (order.append(name), method(self))[1]

    monkeypatch.setattr(Figures, "read", noted("read", read))
    monkeypatch.setattr(Coming, "fetch", noted("fetch", fetch))
    assert len([*islice(trainer_of(tmp_path).steps(), 3)]) == 3
    assert order == ["fetch", "fetch", "read", "fetch", "read", "fetch", "read"]


def test_the_same_batches_come_in_the_same_order(tmp_path: Path) -> None:
    feed = trainer_of(tmp_path).feed()
    coming, plain = Coming(feed), [*islice(feed, 4)]
    for number, expected in enumerate(plain):
        found = coming.take()
        assert found is not None and found.position == expected.position
        assert found.batch.tokens.equal(expected.batch.tokens)
        if number % 2:
            coming.fetch()


def test_what_goes_wrong_in_a_batch_is_raised_at_its_own_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(tmp_path)
    first = next(iter(trainer.feed()))

    def broken() -> Iterator[Ready]:
        yield first
        raise DataError("the second one is broken")

    monkeypatch.setattr(trainer, "feed", broken)
    steps = trainer.steps()
    assert next(steps).fate == "applied" and trainer.progress.step == 1
    with pytest.raises(DataError, match="the second one"):
        next(steps)


def test_a_piece_of_packed_rows_knows_its_own_documents(tmp_path: Path) -> None:
    batch = next(iter(trainer_of(tmp_path, "data.packing=pack").feed())).batch
    found = [piece.batch.frame for piece in pieces(batch, 96)]
    assert len(found) > 1
    for frame in found:
        assert frame.segments is not None and frame.documents is not None
        assert frame.documents.bounds.equal(bounds_of(frame.segments))


def test_a_feed_that_ends_ends() -> None:
    assert Coming([]).take() is None
