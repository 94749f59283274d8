"""Eight families on the fifteen synthetic tasks: is one of them best everywhere?"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from anyformer.analysis.claim import Decision, Figures, TrainedClaim
from anyformer.analysis.task_suite import FAMILIES, TASKS, TIMES, suite_results
from anyformer.drawing.figures import Grid, Panel

TRANSFORMER, MARGIN = "transformer", 0.05
Shares = Mapping[str, Mapping[str, float]]
"""Task -> family -> accuracy, the mean of the seeds."""


class TaskMatrix(TrainedClaim):
    ids = ("CLM-31",)
    says = "The Transformer is strong across tasks, dominates long sequences, and is what to take if data are many."

    def find(self, folder: Path) -> Figures:
        return suite_results(folder)

    def decide(self, figures: Figures) -> Decision:
        behind = {
            times: {task: max(row.values()) - row[TRANSFORMER] for task, row in shares(figures, times).items()}
            for times in TIMES
        }
        near = {times: sum(gap < MARGIN for gap in gaps.values()) for times, gaps in behind.items()}
        worst = max(behind[1], key=lambda task: behind[1][task])
        best = max(FAMILIES, key=lambda family: shares(figures, 1)[worst][family])
        return "holds" if behind[1][worst] < MARGIN else "depends", (
            f"the Transformer is less than {MARGIN:.0%} behind the best of {len(FAMILIES)} families in {near[1]} of "
            f"{len(TASKS)} tasks at the learned length, and in {near[2]} on texts twice as long; in {worst} {best} is "
            f"ahead by {behind[1][worst]:.0%}"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        return [
            Grid(
                "Accuracy at the learned length" if times == 1 else f"on texts {times} times as long",
                "",
                "",
                [[round(row[family], 2) for family in FAMILIES] for row in list(shares(figures, times).values())[::-1]],
                names=(FAMILIES, list(TASKS)[::-1]),
            )
            for times in TIMES[:2]
        ]

    def table(self, figures: Figures) -> Sequence[Sequence[str]]:
        rows = [
            [task, f"{TASKS[task].task.chance:.0%}", *(f"{row[family]:.0%}" for family in FAMILIES)]
            for task, row in shares(figures, 1).items()
        ]
        return [["task", "chance", *FAMILIES], *rows]


def shares(figures: Figures, times: int) -> Shares:
    """The accuracy at a multiple of the learned length, the mean of the seeds."""
    place = TIMES.index(times)
    return {
        task: {family: fmean(seed[place] for seed in by_family[family]) for family in FAMILIES}
        for task, by_family in figures["right"].items()
    }


def breaks(figures: Figures) -> Mapping[str, Mapping[str, int]]:
    """The largest of `TIMES` up to which a family stays above the middle between chance and 1; 0: not even at the
    learned length."""
    by_times = [shares(figures, times) for times in TIMES]
    return {
        task: {family: _last([rows[task][family] for rows in by_times], suite.task.chance) for family in FAMILIES}
        for task, suite in TASKS.items()
    }


def _last(accuracies: Sequence[float], chance: float) -> int:
    last = 0
    for times, accuracy in zip(TIMES, accuracies, strict=True):
        if accuracy < (1 + chance) / 2:
            break
        last = times
    return last
