"""First-token recall over a long text: which mixers learn a dependency on the first token?"""

from pathlib import Path

from anyformer.analysis.claim import Decision, Figures, TrainedClaim
from anyformer.analysis.claim_runs import ATTENTION, LSTM, RNN, accuracy, learn, stack
from anyformer.data.synthetic.first_token_recall import FirstTokenRecall
from anyformer.drawing.figures import Bars, Panel

LENGTH, STEPS = 200, 100
MIXERS = {"RNN": RNN, "LSTM": LSTM, "Transformer": ATTENTION}
RECIPE = (f"data.source.length={LENGTH}", "data.source.count=3000", "data.context=256", "objective.kind=classify",
          f"train.steps={STEPS}", "train.batch_tokens=4096", "optimizer.lr=2e-3")  # fmt: skip


class LongLag(TrainedClaim):
    ids = ("CLM-18",)
    says = "A Transformer learns dependencies over its whole length, a recurrence does not."

    def find(self, folder: Path) -> Figures:
        runs = {
            name: learn(folder, f"long-lag-{name}", "first_token_recall", *RECIPE, *stack(mixer))
            for name, mixer in MIXERS.items()
        }
        return {"chance": FirstTokenRecall().chance, **{name: accuracy(run) for name, run in runs.items()}}

    def decide(self, figures: Figures) -> Decision:
        right = figures["Transformer"] > 0.99 and figures["RNN"] < figures["chance"] + 0.15
        text = ", ".join(f"{name} {figures[name]:.0%}" for name in MIXERS)
        return (
            right,
            f"after {STEPS} updates the first of {LENGTH} symbols is named by: {text} (chance {figures['chance']:.0%})",
        )

    def picture(self, figures: Figures) -> list[Panel]:
        return [Bars(f"The first of {LENGTH} symbols", "accuracy", list(figures.items()))]
