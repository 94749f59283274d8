"""The order in which the runs of studies that are trained together can start.

The trials of learning rates come in rounds: all arms end a round before the rates of the next one are known, so that no
arm has more trials than another. Meanwhile other studies go on: while the slowest arm of one ends its round, free
workers begin with the next study. In each study all arms of a seed come before the next seed, so that the runs of a
study that was stopped are paired.
"""

from collections import deque
from collections.abc import Sequence
from pathlib import Path

from anyformer.core.discovery import imported_files
from anyformer.run import Run
from anyformer.study.judging import judgement_of
from anyformer.study.running import Outcome, RunTask, scored
from anyformer.study.study_folder import StudyFolder, standing
from anyformer.study.tuning import best_rate, next_trials, trials_of


class StudySchedule:
    """The tasks of several studies, the first study first."""

    def __init__(self, folders: Sequence[StudyFolder], cache: Path | None):
        self.studies = {folder.path: StudyTasks(folder, cache) for folder in folders}
        self.outcomes: list[Outcome] = []
        """Outcomes of runs of seeds, not of trials."""

    @property
    def is_open(self) -> bool:
        """True if any run is not finished."""
        return any(study.open() for study in self.studies.values())

    def take(self) -> RunTask | None:
        """The next task that can start now; None if all others wait for tasks that are in progress, or none is left."""
        return next((task for study in self.studies.values() if (task := study.take())), None)

    def finish(self, outcome: Outcome) -> None:
        """Notes that a task has ended, so that others may start."""
        self.studies[outcome.task.folder].finish(outcome)
        if outcome.task.seed is not None:
            self.outcomes.append(outcome)


class StudyTasks:
    """The trials and runs of a study that are not finished."""

    def __init__(self, folder: StudyFolder, cache: Path | None):
        self.folder, self.cache = folder, cache
        self.failed: dict[str, dict[float, float]] = {arm.name: {} for arm in folder.arms}
        self.tunes = not any(folder.run(arm.name, 0).exists() for arm in folder.arms)
        self.waiting, self.in_progress, self.tuned = deque[RunTask](), 0, False

    def take(self) -> RunTask | None:
        """The next task that can start now, if there is one."""
        if not (self.waiting or self.in_progress or self.tuned):
            trials = self.trials()
            self.waiting, self.tuned = deque(trials or self.open()), not trials
        if not self.waiting:
            return None
        self.in_progress += 1
        return self.waiting.popleft()

    def finish(self, outcome: Outcome) -> None:
        """Notes that a task has ended; of a trial without a folder nothing else is known."""
        self.in_progress -= 1
        if outcome.task.seed is None:
            self.failed[outcome.task.arm][outcome.task.rate] = float("inf")

    def trials(self) -> list[RunTask]:
        """The next round of trials of learning rates; empty when tuning has ended. All arms have as many trials."""
        if not self.tunes:
            return []
        centers = {arm.name: arm.recipe.optimizer.lr for arm in self.folder.arms}
        tried = {arm: {**self.failed[arm], **trials_of(self.folder, arm)} for arm in centers}
        rates = next_trials(centers, self.folder.spec.tuning, tried)
        longest = max(map(len, rates.values()), default=0)
        places = [(arm, place) for place in range(longest) for arm in rates if place < len(rates[arm])]
        return [self.task(arm, rates[arm][place], None) for arm, place in places]

    def open(self) -> list[RunTask]:
        """The runs that are not finished, with the rates of the best trials."""
        rates = {arm.name: self.rate(arm.name, arm.recipe.optimizer.lr) for arm in self.folder.arms}
        places = [(arm, seed) for seed in self.folder.spec.every_seed for arm in rates]
        return [self.task(arm, rates[arm], seed) for arm, seed in places if self.is_open(arm, seed)]

    def rate(self, arm: str, otherwise: float) -> float:
        """The learning rate of an arm: that of its runs if there are any, or the best of its trials."""
        runs = [self.folder.run(arm, seed) for seed in range(self.folder.spec.seeds)]
        begun = [run for run in runs if standing(run)[0] in ("complete", "begun")]
        return Run(begun[0]).recipe.optimizer.lr if begun else best_rate(trials_of(self.folder, arm), otherwise)

    def task(self, arm: str, rate: float, seed: int | None) -> RunTask:
        threads = int(self.folder.plan["threads"])
        return RunTask(self.folder.path, arm, rate, seed, threads, self.cache, imported_files())

    def is_open(self, arm: str, seed: int) -> bool:
        """True if a run is not finished or not judged, or one of its downstream runs is not finished."""
        run = self.folder.run(arm, seed)
        if (state := standing(run)[0]) != "complete":
            return state != "failed"
        if judgement_of(Run(run), "valid" if self.folder.spec.metric == "valid_loss" else None) is None:
            return True
        tasks = self.folder.tasks_of(seed).items()
        states = (scored(self.folder.later(arm, seed, task), name).state for task, name in tasks)
        return any(state not in ("complete", "failed") for state in states)
