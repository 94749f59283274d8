"""A run stops early when its validation loss stays above its lowest value, and at the same step after a resume."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.training.small import TINY, facts, text, tiny

from anyformer.cli.main import main
from anyformer.cli.output.runs_table import find
from anyformer.reporting.run_facts import RunFacts
from anyformer.run import Run, train
from anyformer.training import Session, Step, Watcher
from anyformer.training.loop.budget import Observer, Progress

RISING = ("train.steps=18", "optimizer.lr=3", "schedule.kind=constant", "schedule.warmup=0", "evaluate.every=3",
          "train.stop=2", "log.every=5", "checkpoint.every=1000", "model.stack.depth=1", "train.micro_batch=96",
          "evaluate.batches=2")  # fmt: skip
"""A rate at which the validation loss rises after the first evaluations."""


class Listening(Watcher):
    """Remembers messages, and raises after a step if one is named."""

    def __init__(self, crash: int | None = None):
        self.messages: list[str] = []
        self.crash = crash

    def log(self, text: str) -> None:
        self.messages.append(text)

    def stepped(self, session: Session) -> Sequence[Observer]:
        def raise_at(step: Step) -> None:
            if step.number == self.crash:
                raise RuntimeError("crash")

        return (raise_at,)


def rising(folder: Path, name: str, watcher: Watcher, *more: str) -> Run:
    return train(text(folder), *TINY, *RISING, *more, out=folder / name, cache=folder / "cache", watcher=watcher)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("early")


@pytest.fixture(scope="module")
def messages(home: Path) -> list[str]:
    """The messages of a run that stops early."""
    watcher = Listening()
    rising(home, "stopped", watcher)
    return watcher.messages


def stopped_at(run: Run) -> int:
    """The step after the second validation loss in a row that is more than 1% above the lowest."""
    progress = Progress()
    for line in (line for line in facts(run) if "valid_loss" in line):
        progress.step = line["step"]
        progress.note_validation(line["valid_loss"])
    return progress.step if progress.worse == 2 else -1


def test_losses_in_a_row_that_are_well_above_the_lowest_are_counted() -> None:
    progress, counts = Progress(), []
    for loss in (1.0, 1.02, 1.009, 1.02, float("nan"), 0.9, 0.91, -1.0, -0.995, -0.98):
        progress.note_validation(loss)
        counts.append(progress.worse)
    assert counts == [0, 1, 0, 1, 2, 0, 1, 0, 0, 1] and progress.best == -1.0


def test_a_run_that_overfits_stops_and_is_complete(home: Path, messages: list[str]) -> None:
    run = Run.open(home / "stopped")
    step, best = run.state["progress"]["step"], run.state["progress"]["best_step"]
    assert step == stopped_at(run) < 18 and run.complete
    assert f"stopped early, at step {step} of 18" in messages[-1] and "2 evaluations in a row" in messages[-1]
    assert f"The best checkpoint is that of step {best}," in messages[-1] and "train.stop=0" in messages[-1]
    assert run.describe() == f"step {best} of {step}, best validation loss"


def test_a_run_that_stopped_early_is_listed_and_reported_as_complete(
    home: Path, messages: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", str(home / "stopped")]) == 0 and "complete, stopped early" in capsys.readouterr().out
    (line,) = find(home / "stopped")
    facts = RunFacts.of(home / "stopped")
    assert line["state"] == "complete" and line["step"] == facts.step < line["steps"] == 18
    assert f"{facts.step} steps of 18, stopped early" in facts.sentence


def test_a_resumed_run_stops_at_the_same_step(home: Path, messages: list[str]) -> None:
    calm = Run.open(home / "stopped")
    last = calm.state["progress"]["step"]
    with pytest.raises(RuntimeError, match="crash"):  # between the two losses that stop the run
        rising(home, "crashed", Listening(crash=last - 1), "checkpoint.every=1")
    resumed = tiny(home, "crashed", resume=True)
    assert resumed.state["progress"]["step"] == last and resumed.complete
    assert facts(resumed) == facts(calm)


def test_the_word_zero_turns_early_stopping_off(home: Path) -> None:
    run = rising(home, "off", Watcher(), "train.stop=0")
    assert run.state["progress"]["step"] == 18
