"""Eight families on the fifteen synthetic tasks: is one of them best everywhere?"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from anyformer.analysis.claim import Decision, Figures, TrainedClaim
from anyformer.analysis.task_suite import FAMILIES, MULTIPLES, TASKS, suite_results
from anyformer.drawing.figures import Grid, Panel

TRANSFORMER, MARGIN = "transformer", 0.05
Accuracies = Mapping[str, Mapping[str, float]]
"""Task -> family -> accuracy, the mean of the seeds."""


class TaskMatrix(TrainedClaim):
    ids = ("CLM-31",)
    says = "The Transformer is strong across tasks, dominates long sequences, and is what to take if data are many."

    def find(self, folder: Path) -> Figures:
        return suite_results(folder)

    def decide(self, figures: Figures) -> Decision:
        behind = {multiple: _behind(figures, multiple) for multiple in MULTIPLES[:2]}
        learned, longer = (f"{_near(gaps)} of the {len(gaps)}" for gaps in behind.values())
        worst = max(behind[1], key=lambda task: behind[1][task])
        best = max(FAMILIES, key=lambda family: accuracies(figures, 1)[worst][family])
        return "holds" if behind[1][worst] < MARGIN else "depends", (
            f"the Transformer is less than {MARGIN:.0%} behind the best of {len(FAMILIES)} families in {learned} tasks "
            f"that any of them learns, and in {longer} on texts twice as long; in {worst} {best} is ahead by "
            f"{behind[1][worst]:.0%}"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        return [
            Grid(
                "Accuracy at the learned length" if multiple == 1 else f"on texts {multiple} times as long",
                "",
                "",
                [[round(row[name], 2) for name in FAMILIES] for row in [*accuracies(figures, multiple).values()][::-1]],
                names=(FAMILIES, [*TASKS][::-1]),
            )
            for multiple in MULTIPLES[:2]
        ]

    def table(self, figures: Figures) -> Sequence[Sequence[str]]:
        rows = [
            [task, f"{TASKS[task].chance(1):.0%}", *(f"{row[family]:.0%}" for family in FAMILIES)]
            for task, row in accuracies(figures, 1).items()
        ]
        return [["task", "chance", *FAMILIES], *rows]


def accuracies(figures: Figures, multiple: int) -> Accuracies:
    """The accuracy at a multiple of the learned length, the mean of the seeds."""
    place = MULTIPLES.index(multiple)
    return {
        task: {family: fmean(seed[place] for seed in by_family[family]) for family in FAMILIES}
        for task, by_family in figures["accuracy"].items()
    }


def reach(figures: Figures) -> Mapping[str, Mapping[str, int]]:
    """The largest of `MULTIPLES` up to which a family stays above the middle between chance and 1; 0: not even at the
    learned length."""
    by_multiple = {multiple: accuracies(figures, multiple) for multiple in MULTIPLES}
    last = {task: dict.fromkeys(FAMILIES, 0) for task in TASKS}
    for task, suite in TASKS.items():
        for family in FAMILIES:
            for multiple, rows in by_multiple.items():
                if rows[task][family] < suite.middle(multiple):
                    break
                last[task][family] = multiple
    return last


def _behind(figures: Figures, multiple: int) -> Mapping[str, float]:
    """How far the Transformer is behind the best family, in each task that a family has learned."""
    rows = accuracies(figures, multiple)
    learned = {task: row for task, row in rows.items() if max(row.values()) >= TASKS[task].middle(multiple)}
    return {task: max(row.values()) - row[TRANSFORMER] for task, row in learned.items()}


def _near(gaps: Mapping[str, float]) -> int:
    return sum(gap < MARGIN for gap in gaps.values())
