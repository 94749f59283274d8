"""First-token recall over a long text: which mixers learn a dependency on the first token, and after how long?

The training texts have several lengths, up to that of the test texts: trained on the longest alone, two of three LSTMs
stayed at chance (docs/experiments.md).
"""

from pathlib import Path
from statistics import fmean

from anyformer.analysis.claim import Decision, Figures, TrainedClaim, mean_curve, seed_curves
from anyformer.analysis.claim_runs import ATTENTION, LSTM, RNN, learn, right_on, stack
from anyformer.analysis.parallel_cells import in_parallel
from anyformer.data.sources.mixture import MixtureSource
from anyformer.data.synthetic.first_token_recall import FirstTokenRecall
from anyformer.drawing.figures import Lines, Panel

LENGTH, TRAINING_LENGTHS, TEXTS = 201, (13, 26, 51, 101, 201), 2500
"""Symbols of a test text, symbols of a training text, and the number of training texts of each length."""
BUDGETS, SEEDS = (100, 300, 1000, 3000), (0, 1, 2)
APART = 0.1
"""Difference in mean accuracy over all budgets by which the LSTM lies above the RNN and below the Transformer."""
MIXERS = {"RNN": RNN, "LSTM": LSTM, "Transformer": ATTENTION}


class LongLag(TrainedClaim):
    ids = ("CLM-18",)
    says = "A Transformer learns a dependency over 200 tokens, a plain RNN does not, and an LSTM lies between."

    def find(self, folder: Path) -> Figures:
        cells = [(name, steps, seed) for name in MIXERS for seed in SEEDS for steps in BUDGETS]
        shares = dict(zip(cells, in_parallel(recalled, cells, folder), strict=True))
        curves = {name: [[shares[name, steps, seed] for steps in BUDGETS] for seed in SEEDS] for name in MIXERS}
        return {"chance": FirstTokenRecall().chance, "updates": BUDGETS, **curves}

    def decide(self, figures: Figures) -> Decision:
        transformer, recurrent = figures["Transformer"], figures["RNN"]
        right = min(curve[-1] for curve in transformer) > 0.99
        right &= max(map(max, recurrent)) < figures["chance"] + 0.15
        below, between, above = (sorted(map(fmean, figures[name])) for name in MIXERS)
        right &= below[-1] + APART < between[0] and between[-1] + APART < above[0]
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
    """The accuracy on texts of the tested length after so many updates."""
    source = MixtureSource(sources=tuple(FirstTokenRecall(length=length, count=TEXTS) for length in TRAINING_LENGTHS))
    run = learn(
        folder, f"long-lag-{name}-{steps}-{seed}", source, "data.tokenizer.kind=word", "data.context=256",
        "objective.kind=classify", f"train.steps={steps}", "train.batch_tokens=4096", "optimizer.lr=3e-3",
        f"seed={seed}", *stack(MIXERS[name]),
    )  # fmt: skip
    return right_on(run, FirstTokenRecall(length=LENGTH, count=500, seed=1))
