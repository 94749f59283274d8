"""The cost of a study: runs, tokens and FLOPs before it starts, and the time that is left once it runs."""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from anyformer.core.readable_numbers import clock, counted, human, human_flops
from anyformer.run import Run
from anyformer.study.planning import Arm
from anyformer.study.study import StudySpec, Tuning
from anyformer.study.study_folder import StudyFolder
from anyformer.study.workers import jobs_of


class Price(NamedTuple):
    """Tokens and FLOPs of trials and runs, by the cost card."""

    tokens: float
    flops: float

    def __str__(self) -> str:
        return f"{human(self.tokens)} tokens, {human_flops(self.flops)}"


def price_of(arms: Sequence[Arm], spec: StudySpec) -> Price:
    """The price of all runs of some arms and of their first trials."""
    weight = _runs_of_an_arm(spec)
    tokens = sum((arm.recipe.train.steps or 0) * arm.recipe.train.batch_tokens for arm in arms)
    return Price(weight * tokens, weight * sum(arm.train_flops for arm in arms))


def total(prices: Iterable[Price]) -> Price:
    """The sum of several prices."""
    tokens, flops = zip(*prices, strict=True)
    return Price(sum(tokens), sum(flops))


def announcement(arms: Sequence[Arm], spec: StudySpec) -> str:
    """The number of runs and trials at one budget, and their price."""
    runs, trials = len(arms) * len(spec.every_seed), len(arms) * _trials(spec.tuning)
    seeds = counted(spec.seeds, "seeds") + (f" and {spec.repeats} fresh ones" if spec.repeats else "")
    parts = [f"{counted(len(arms), 'arms')} x {seeds} = {counted(runs, 'runs')}"]
    if trials:
        more = f", {trials + len(arms) * spec.tuning.extra} at most" if spec.tuning.extra else ""
        parts.append(f"{counted(trials, 'trials')} of learning rates ({spec.tuning.share:.0%} of a run{more})")
    what = " and ".join(parts)
    if minutes := sum(arm.recipe.train.minutes or 0.0 for arm in arms):
        weight = _runs_of_an_arm(spec)
        return f"{what}: about {clock(60 * minutes * weight / jobs_of(spec, len(arms)))}, by the budget of each run"
    return f"{what}: {price_of(arms, spec)}"


def _runs_of_an_arm(spec: StudySpec) -> float:
    """The work of an arm, its first trials included, in runs of full length."""
    return len(spec.every_seed) + spec.tuning.share * _trials(spec.tuning)


def _trials(tuning: Tuning) -> int:
    """Trials that every arm gets in any case."""
    return tuning.trials if tuning.trials > 1 else 0


class Pace:
    """The measured speed of studies that are trained together, for the time that is left."""

    def __init__(self, folders: Sequence[StudyFolder]):
        self.folders = folders
        self.seconds_per_step: dict[Path, float] = {}

    def seconds_left(self, done: Collection[Path]) -> float | None:
        """Seconds until the studies end, apart from further trials. `done`: folders of the runs that have ended.
        None until every arm was measured in a trial or a run, and if the budget is a time."""
        each = [(folder, arm) for folder in self.folders for arm in folder.arms]
        left = [self._work_left(folder, arm, done) for folder, arm in each]
        known = [seconds for seconds in left if seconds is not None]
        return sum(known) / jobs_of(self.folders[0].spec, len(each)) if len(known) == len(left) else None

    def _work_left(self, folder: StudyFolder, arm: Arm, done: Collection[Path]) -> float | None:
        """Seconds that one worker needs for the runs and the first trials of an arm that are left."""
        key, spec = folder.recipe_file(arm.name), folder.spec
        if key not in self.seconds_per_step and (seconds := _seconds_per_step(folder, arm.name)):
            self.seconds_per_step[key] = seconds
        if key not in self.seconds_per_step or arm.recipe.train.steps is None:
            return None
        runs = sum(folder.run(arm.name, seed) not in done for seed in spec.every_seed)
        tuning = spec.tuning.trials > 1 and runs == len(spec.every_seed)
        trials = max(0, spec.tuning.trials - len(folder.trials(arm.name))) if tuning else 0
        return arm.recipe.train.steps * (runs + spec.tuning.share * trials) * self.seconds_per_step[key]


def _seconds_per_step(folder: StudyFolder, arm: str) -> float | None:
    """Seconds per step of the first trial or run of an arm with two lines of metrics: the first step is slower."""
    for run in (*folder.trials(arm), *(folder.run(arm, seed) for seed in range(folder.spec.seeds))):
        lines = [line for line in Run(run).metrics() if "wall_s" in line]
        if len(lines) > 1:
            seconds, steps = (float(lines[-1][key] - lines[0][key]) for key in ("wall_s", "step"))
            return seconds / steps
    return None
