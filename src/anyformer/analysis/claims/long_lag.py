"""First-token recall over a long text: which mixers learn a dependency on the first token, and after how long?"""

from pathlib import Path

from anyformer.analysis.claim import Decision, Figures, TrainedClaim, mean_curve, seed_curves
from anyformer.analysis.claim_runs import ATTENTION, LSTM, RNN, accuracy, learn, stack
from anyformer.analysis.parallel_cells import in_parallel
from anyformer.data.synthetic.first_token_recall import FirstTokenRecall
from anyformer.drawing.figures import Lines, Panel

LENGTH, BUDGETS, SEEDS = 201, (100, 300, 1000, 3000), (0, 1, 2)
MIXERS = {"RNN": RNN, "LSTM": LSTM, "Transformer": ATTENTION}


class LongLag(TrainedClaim):
    ids = ("CLM-18",)
    says = "A Transformer learns dependencies over its whole length, a recurrence does not."

    def find(self, folder: Path) -> Figures:
        cells = [(name, steps, seed) for name in MIXERS for seed in SEEDS for steps in BUDGETS]
        shares = dict(zip(cells, in_parallel(recalled, cells, folder), strict=True))
        curves = {name: [[shares[name, steps, seed] for steps in BUDGETS] for seed in SEEDS] for name in MIXERS}
        return {"chance": FirstTokenRecall().chance, "updates": BUDGETS, **curves}

    def decide(self, figures: Figures) -> Decision:
        transformer, recurrent = figures["Transformer"], figures["RNN"]
        right = min(curve[-1] for curve in transformer) > 0.99
        right &= max(map(max, recurrent)) < figures["chance"] + 0.15
        budgets = " / ".join(map(str, figures["updates"]))
        shares = {name: " / ".join(f"{share:.0%}" for share in mean_curve(figures[name])) for name in MIXERS}
        return right, (
            f"after {budgets} updates the first of {LENGTH} symbols is named by "
            f"{', '.join(f'{name}: {text}' for name, text in shares.items())} (means of {len(recurrent)} seeds; chance "
            f"{figures['chance']:.1%})"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        lines = seed_curves(figures, "updates", MIXERS)
        return [Lines(f"The first of {LENGTH} symbols", "updates", "accuracy", lines, log_x=True)]


def recalled(folder: Path, name: str, steps: int, seed: int) -> float:
    """The accuracy after so many updates."""
    run = learn(
        folder, f"long-lag-{name}-{steps}-{seed}", "first_token_recall", f"data.source.length={LENGTH}",
        "data.context=256", "objective.kind=classify", f"train.steps={steps}", "train.batch_tokens=4096",
        "optimizer.lr=2e-3", f"seed={seed}", *stack(MIXERS[name]),
    )  # fmt: skip
    return accuracy(run)
