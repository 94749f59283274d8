"""In which order the runs of several studies start."""

from pathlib import Path

import pytest
from tests.study.small import tiny

from anyformer.errors import Interrupted
from anyformer.study.running import Outcome, RunTask
from anyformer.study.study_folder import StudyFolder
from anyformer.study.study_schedule import StudySchedule

TUNING = ("study.tuning.trials=2", "study.tuning.extra=0")


@pytest.fixture
def folders(tmp_path: Path) -> list[StudyFolder]:
    """Two budgets that are planned, and of which nothing has run."""
    with pytest.raises(Interrupted):
        tiny(tmp_path, "study.budgets=[2, 4]", "study.minutes=0", *TUNING)
    return [StudyFolder.open(tmp_path / "study" / f"steps-{steps}") for steps in (2, 4)]


def taken(schedule: StudySchedule) -> list[RunTask]:
    """All tasks that can start now."""
    tasks = []
    while task := schedule.take():
        tasks.append(task)
    return tasks


def described(tasks: list[RunTask]) -> list[tuple[str, str, int | None]]:
    return [(task.folder.name, task.arm, task.seed) for task in tasks]


def test_free_workers_go_on_with_the_next_budget_while_a_round_of_trials_ends(folders: list[StudyFolder]) -> None:
    schedule = StudySchedule(folders, None)
    trials = taken(schedule)
    assert described(trials) == [
        (steps, arm, None) for steps in ("steps-2", "steps-4") for _ in range(2) for arm in ("transformer", "lstm")
    ]
    *first, last = trials[:4]
    for task in first:
        schedule.finish(Outcome(task, "failed"))
        assert schedule.take() is None, "the round has not ended"
    schedule.finish(Outcome(last, "failed"))
    runs = [("steps-2", arm, seed) for seed in (0, 1) for arm in ("transformer", "lstm")]
    assert described(taken(schedule)) == runs, "the trials of the other budget are still in progress"


def test_a_schedule_ends_when_all_runs_have_ended(folders: list[StudyFolder]) -> None:
    schedule, count = StudySchedule(folders, None), 0
    while tasks := taken(schedule):
        count += len(tasks)
        for task in tasks:
            schedule.finish(Outcome(task, "failed"))
    assert count == 2 * (4 + 4) and len(schedule.outcomes) == 8
