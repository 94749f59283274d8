"""A study at several budgets: the loss of each arm by the number of steps, and where the curves of two arms cross.

Every budget is a study in a folder of its own, with its own schedule and learning rates. So a point is a run that was
planned for this length, not the middle of a longer one, whose learning rate would still be high.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

from anyformer.core.readable_numbers import counted
from anyformer.errors import CheckpointError
from anyformer.statistics.comparison import verdict
from anyformer.statistics.intervals import Interval
from anyformer.statistics.paired import differences, t_interval
from anyformer.study.repetition import RepeatedVerdict
from anyformer.study.study_facts import interval_facts
from anyformer.study.study_folder import PLAN, STUDY, StudyFolder
from anyformer.study.study_results import Results, spread


@dataclass(frozen=True)
class Crossing:
    """Two arms of which one is lower at a small budget and the other at the next larger one."""

    first: str
    """The arm that is lower at the small budget."""
    second: str
    between: tuple[int, int]
    """The two budgets, in steps."""
    steps: float
    """Where the curves cross, by a line through the two differences over the logarithm of the steps."""
    settled: bool
    """True if the 95% intervals of both differences exclude 0."""

    @property
    def sentence(self) -> str:
        small, large = self.between
        text = f"{self.first} is lower than {self.second} at {small:,} steps and higher at {large:,}"
        about = f"{float(f'{self.steps:.2g}'):,.0f} steps{'' if self.settled else ', if not by chance'}"
        return f"{text}: they cross at about {about}."


@dataclass(frozen=True)
class BudgetCurves:
    """The results of a study at several budgets, from the smallest to the largest."""

    folder: Path
    results: tuple[Results, ...]
    """Results at the budgets with finished runs, from the smallest to the largest."""
    unfinished: int = 0
    """Number of runs at all budgets that have not begun or were interrupted."""
    total: int = 0
    """Number of runs at all budgets."""

    @classmethod
    def open(cls, folder: Path) -> "BudgetCurves":
        """The study at all budgets that have finished runs."""
        budgets = StudyFolder.open(folder).spec.budgets
        paths = [path for path in (budget_folder(folder, steps) for steps in budgets) if (path / STUDY).is_file()]
        if not paths:
            raise CheckpointError(f"{folder}: no budget has begun yet. Go on with: anyformer compare {folder}")
        return cls.of(folder, [Results(StudyFolder.open(path)) for path in paths])

    @classmethod
    def of(cls, folder: Path, results: Sequence[Results]) -> "BudgetCurves":
        """The budgets with finished runs; the largest one if no run has finished at any. `results`: of all budgets that
        have begun."""
        finished = [result for result in results if result.finished]
        runs = len(results[0].arms) * len(results[0].spec.every_seed)
        budgets = len(StudyFolder(folder).spec.budgets)
        unfinished = sum(result.unfinished for result in results) + runs * (budgets - len(results))
        return cls(folder, tuple(finished or results[-1:]), unfinished, runs * budgets)

    @property
    def controls_folder(self) -> StudyFolder:
        """The study at the largest budget, which the controls belong to."""
        return StudyFolder(budget_folder(self.folder, StudyFolder(self.folder).spec.budgets[-1]))

    @property
    def steps(self) -> list[int]:
        """The budgets: steps of the baseline."""
        return [result.folder.arms[0].recipe.train.steps or 0 for result in self.results]

    @property
    def arms(self) -> list[str]:
        return [arm.name for arm in self.results[-1].arms]

    def losses(self, arm: str) -> list[Interval]:
        """The mean loss of an arm at each budget, with its 95% interval over seeds."""
        return [t_interval(self._values(result, arm)) for result in self.results]

    @cached_property
    def crossings(self) -> list[Crossing]:
        """All crossings of two arms between neighbouring budgets."""
        return [crossing for pair in combinations(self.arms, 2) for crossing in self._crossings(*pair)]

    @property
    def sentences(self) -> list[str]:
        """Where curves cross, or that none do; empty for a single budget."""
        if len(self.steps) < 2:
            return []
        steps = f"{self.steps[0]:,} and {self.steps[-1]:,} steps"
        return [crossing.sentence for crossing in self.crossings] or [f"No curves cross between {steps}."]

    def rows(self) -> list[dict[str, str]]:
        """The table of the losses: a row for each arm, a column for each budget."""
        return [
            {"arm": arm} | {f"{steps:,} steps": spread(loss) for steps, loss in zip(self.steps, losses, strict=True)}
            for arm, losses in ((arm, self.losses(arm)) for arm in self.arms)
        ]

    def to_dict(self) -> dict[str, Any]:
        """The field `budgets` of `compare --json`."""
        return {
            "steps": self.steps,
            "losses": {arm: [interval_facts(loss) for loss in self.losses(arm)] for arm in self.arms},
            "crossings": [{**vars(crossing), "sentence": crossing.sentence} for crossing in self.crossings],
            "verdicts": [result.verdict for result in self.results],
        }

    @property
    def repeated(self) -> list[RepeatedVerdict]:
        """The verdicts at all budgets that were repeated with fresh seeds."""
        named = zip(self.steps, self.results, strict=True)
        return [replace(one, budget=steps) for steps, result in named for one in result.repeated]

    @cached_property
    def main(self) -> int:
        """The place of the budget that the verdict is about: the largest one whose runs have all ended, or if there is
        none the largest one with finished runs."""
        ended = [place for place, result in enumerate(self.results) if result.ended]
        return max(ended, default=len(self.results) - 1)

    @property
    def others(self) -> list[tuple[int, Results]]:
        """The steps and the results of all budgets but the main one."""
        named = enumerate(zip(self.steps, self.results, strict=True))
        return [pair for place, pair in named if place != self.main]

    @property
    def other_verdicts(self) -> list[str]:
        """The verdict at every budget but the main one."""
        return [f"After {counted(steps, 'steps')}: {verdict(result.comparison, '')}" for steps, result in self.others]

    def _values(self, result: Results, arm: str) -> list[float]:
        return [float(getattr(run, result.metric)) for run in result.runs[arm]]

    def _crossings(self, first: str, second: str) -> list[Crossing]:
        gaps = []
        for result in self.results:
            values = [self._values(result, second), self._values(result, first)]
            gaps.append(t_interval(differences(values)[1]))  # first less second, paired by seed
        crossings = []
        for (small, before), (large, after) in pairwise(zip(self.steps, gaps, strict=True)):
            if not before.value * after.value < 0:
                continue
            share = before.value / (before.value - after.value)
            steps = math.exp(math.log(small) + share * (math.log(large) - math.log(small)))
            names = (first, second) if before.value < 0 else (second, first)
            crossings.append(Crossing(*names, (small, large), steps, _excludes_zero(before) and _excludes_zero(after)))
        return crossings


def _excludes_zero(interval: Interval) -> bool:
    return interval.low is not None and interval.high is not None and interval.low * interval.high > 0


def budget_folder(folder: Path, steps: int) -> Path:
    """The folder of the study at one budget."""
    return folder / f"steps-{steps}"


def has_budgets(folder: Path) -> bool:
    """True for the folder of a study at several budgets, which has no plan of its own."""
    return (folder / STUDY).is_file() and not (folder / PLAN).is_file()


def results_of(folder: Path) -> Results:
    """The results of a study folder; at several budgets, those of the main one, with all curves."""
    if not has_budgets(folder):
        return Results(StudyFolder.open(folder))
    return with_curves(BudgetCurves.open(folder))


def with_curves(curves: BudgetCurves) -> Results:
    """The results at the main budget, with the curves of all budgets."""
    main = curves.results[curves.main]
    return Results(main.folder, main.outcomes, curves)
