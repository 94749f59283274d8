"""All families on a suite of small tasks: is one of them best everywhere?"""

from pathlib import Path

from anyformer.analysis.claim import Decision, Figures, TrainedClaim
from anyformer.analysis.claim_runs import ATTENTION, CONVOLUTION, LSTM, S4D, accuracy, learn, stack
from anyformer.drawing.figures import Grid, Panel

MIXERS = {"LSTM": LSTM, "convolution": CONVOLUTION, "S4D": S4D, "Transformer": ATTENTION}
TASKS = {
    "first_token_recall": ("data.source.length=50", "objective.kind=classify"),
    "associative_recall": ("objective.kind=classify", "data.source.pairs=4", "data.source.symbols=8",
                           "data.source.values=4", "data.source.count=20_000", "train.steps=2000",
                           "optimizer.lr=2e-3"),  # with more pairs no family learns the task within minutes
    "parity": ("objective.kind=token_labels",),
}  # fmt: skip
RECIPE = ("data.source.count=3000", "data.context=64", "train.steps=600", "train.batch_tokens=2048",
          "optimizer.lr=5e-3")  # fmt: skip


class TaskMatrix(TrainedClaim):
    ids = ("CLM-31",)
    says = "The Transformer is strong across tasks, dominates long sequences, and is what to take if data are many."

    def find(self, folder: Path) -> Figures:
        return {
            task: [
                accuracy(learn(folder, f"{task}-{name}", task, *RECIPE, *overrides, *stack(mixer)))
                for name, mixer in MIXERS.items()
            ]
            for task, overrides in TASKS.items()
        }

    def decide(self, figures: Figures) -> Decision:
        names = list(MIXERS)
        best = {task: names[scores.index(max(scores))] for task, scores in figures.items()}
        behind = {task: max(scores) - scores[names.index("Transformer")] for task, scores in figures.items()}
        worst = max(behind, key=lambda task: behind[task])
        return "holds" if behind[worst] < 0.02 else "depends", (
            f"the Transformer is at most 2% behind the best in {sum(gap < 0.02 for gap in behind.values())} of "
            f"{len(figures)} tasks; in {worst} {best[worst]} is ahead by {behind[worst]:.0%}"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        rows = [[round(score, 2) for score in scores] for scores in figures.values()]
        return [Grid(f"Accuracy: {', '.join(figures)} from below", ", ".join(MIXERS), "task", rows)]
