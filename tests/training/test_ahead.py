"""What is done before its turn changes nothing but when it is done, and what goes wrong there is raised in its turn."""

import gc
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch
from tests.training.test_carrying import trainer_of as carrying_trainer
from tests.training.test_trainer import TIMELESS, held_by, trainer_of

from anyformer.errors import DataError
from anyformer.training.loop.ahead import Coming, may_ask_ahead
from anyformer.training.loop.feed import PreparedBatch
from anyformer.training.loop.step_results import StepResults
from anyformer.training.loop.trainer import Trainer

BOTH = pytest.mark.parametrize("ahead", [False, True])


def noted(monkeypatch: pytest.MonkeyPatch, trainer: Trainer) -> list[str]:
    """What the trainer does, in this order."""
    order: list[str] = []

    def note(name: str, method: Any) -> Any:
        return lambda *given: (order.append(name), method(*given))[1]

    monkeypatch.setattr(StepResults, "read", note("read", StepResults.read))
    for name in ("_ask", "_apply"):
        monkeypatch.setattr(trainer, name, note(name.strip("_"), getattr(trainer, name)))
    return order


def test_figures_are_read_when_the_next_gradients_have_been_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_of(tmp_path, "train.steps=3")
    trainer.asks_ahead = True
    order = noted(monkeypatch, trainer)
    assert len([*trainer.steps()]) == 3
    assert order == ["ask", "apply", "ask", "read", "apply", "ask", "read", "apply", "read"]  # none beyond the last


def test_without_that_each_update_is_done_before_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(tmp_path, "train.steps=2")
    assert not trainer.asks_ahead  # a CPU
    order = noted(monkeypatch, trainer)
    assert len([*trainer.steps()]) == 2
    assert order == ["ask", "apply", "read"] * 2


def test_every_step_leaves_the_same_behind(tmp_path: Path) -> None:
    calm, early = (trainer_of(tmp_path, "train.ema=0.9") for _ in range(2))
    early.asks_ahead = True
    for mine, theirs in islice(zip(early.steps(), calm.steps(), strict=True), 4):
        assert (mine.loss, mine.lr, mine.gradient_norm) == (theirs.loss, theirs.lr, theirs.gradient_norm)
        assert replace(early.progress, wall_s=0.0) == replace(calm.progress, wall_s=0.0)
        here, there = held_by(early), held_by(calm)
        assert here.keys() == there.keys() and all(value.equal(there[name]) for name, value in here.items())


def test_gradients_that_nobody_came_back_for_are_forgotten(tmp_path: Path) -> None:
    calm, early = trainer_of(tmp_path), trainer_of(tmp_path)
    early.asks_ahead = True
    expected = [step.gradient_norm for step in islice(calm.steps(), 4)]
    found = [step.gradient_norm for _ in range(2) for step in islice(early.steps(), 2)]  # begun twice
    assert found == expected and all(it.tensor.grad is None for it in early.learned)


def test_time_that_is_up_ends_a_run_whose_next_gradients_are_there(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, "train.minutes=0.01", base=TIMELESS)
    trainer.asks_ahead = True
    *before, last = trainer.steps()
    assert last.wall_s >= 0.6 > max((step.wall_s for step in before), default=0.0)
    assert trainer.progress.step == last.number


@BOTH
def test_what_goes_wrong_in_a_batch_is_raised_at_its_own_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: bool
) -> None:
    trainer = trainer_of(tmp_path)
    trainer.asks_ahead = ahead
    first = next(iter(trainer.feed()))

    def broken() -> Iterator[PreparedBatch]:
        yield first
        raise DataError("the second one is broken")

    monkeypatch.setattr(trainer, "feed", broken)
    steps = trainer.steps()
    assert next(steps).fate == "applied" and trainer.progress.step == 1
    with pytest.raises(DataError, match="the second one"):
        next(steps)


def test_the_same_batches_come_in_the_same_order(tmp_path: Path) -> None:
    feed = trainer_of(tmp_path).feed()
    coming, plain = Coming(feed), [*islice(feed, 4)]
    for number, expected in enumerate(plain):
        found = coming.take()
        assert found is not None and found.position == expected.position
        assert found.batch.tokens.equal(expected.batch.tokens)
        if number % 2:
            coming.fetch()


def test_an_error_holds_nothing_of_what_it_interrupted() -> None:
    seen: list[ref[torch.Tensor]] = []

    def broken() -> Iterator[int]:
        large = torch.zeros(3)
        seen.append(ref(large))
        yield from ()
        raise DataError("broken")

    coming = Coming(broken())
    coming.fetch()
    assert seen[0]() is None  # while it waits for its turn
    with pytest.raises(DataError, match="broken"):
        coming.take()


def test_an_error_is_gone_when_it_was_caught() -> None:
    class Mine(Exception):
        pass

    def broken() -> Iterator[int]:
        yield from ()
        raise Mine

    def caught() -> ref[Mine]:
        try:
            Coming(broken()).take()
        except Mine as error:
            return ref(error)
        raise AssertionError

    gc.disable()  # what only it could find holds a whole trainer
    try:
        assert caught()() is None
    finally:
        gc.enable()


def test_what_ends_ends() -> None:
    assert Coming([]).take() is None


def test_nothing_is_asked_ahead_where_more_than_gradients_would_change(tmp_path: Path) -> None:
    trainer, replayed = trainer_of(tmp_path), trainer_of(tmp_path)
    carried = carrying_trainer(tmp_path)
    world = replace(trainer.world, device=torch.device("cuda"))
    assert may_ask_ahead(trainer.scored, world, "bf16")
    assert not may_ask_ahead(trainer.scored, trainer.world, "bf16")
    assert not may_ask_ahead(trainer.scored, world, "fp16")
    assert not may_ask_ahead(trainer.scored, replace(world, size=2), "bf16")
    replayed.scored.replayed = True
    assert not may_ask_ahead(replayed.scored, world, "bf16")
    assert carried.scored.lanes and not may_ask_ahead(carried.scored, world, "bf16")
    trainer.scored.model.register_buffer("mean", torch.zeros(1))
    assert not may_ask_ahead(trainer.scored, world, "bf16")
