"""Parity, trained at one length and tested at others: does a model learn the rule for all lengths?"""

from pathlib import Path

from anyformer.analysis.claim import Decision, Figures, TrainedClaim, mean_curve, seed_curves
from anyformer.analysis.claim_runs import LSTM, RNN, last_tag_accuracy, learn, stack
from anyformer.data.synthetic.parity import Parity
from anyformer.drawing.figures import Lines, Panel

LEARNED, LENGTHS, COUNT, SEEDS = 40, (20, 40, 80, 120, 200), 200, (0, 1, 2)
ABSOLUTE = '{kind="attention", heads=4}'
POSITION = 'model.position={kind="sinusoidal"}'
MODELS = {
    "RNN": stack(RNN, dim=32, depth=1),
    "LSTM": stack(LSTM, dim=32, depth=1),
    "Transformer": (*stack(ABSOLUTE, dim=32), POSITION),
}
RECIPE = (f"data.source.length={LEARNED}", "data.source.count=4000", "data.context=64", "train.steps=800",
          "train.batch_tokens=2048", "optimizer.lr=3e-3", "objective.kind=token_labels")  # fmt: skip


class LengthGeneralisation(TrainedClaim):
    ids = ("CLM-21",)
    says = (
        "A recurrence can learn a rule that holds at every length; a Transformer fails beyond the lengths it has seen."
    )

    def find(self, folder: Path) -> Figures:
        tasks = [Parity(length=length, count=COUNT, seed=1) for length in LENGTHS]
        accuracies: dict[str, list[list[float]]] = {name: [] for name in MODELS}
        for seed in SEEDS:
            for name, model in MODELS.items():
                run = learn(folder, f"parity-{name}-{seed}", "parity", *RECIPE, *model, f"seed={seed}")
                accuracies[name].append([last_tag_accuracy(run, task) for task in tasks])
        return {"lengths": LENGTHS, **accuracies}

    def decide(self, figures: Figures) -> Decision:
        longest, learned = figures["lengths"][-1], figures["lengths"].index(LEARNED)
        ends = {name: [curve[-1] for curve in figures[name]] for name in MODELS}
        recurrences = min(ends["RNN"] + ends["LSTM"])
        right = recurrences > 0.95 and all(abs(end - 0.5) < 0.1 for end in ends["Transformer"])
        transformer = mean_curve(figures["Transformer"])
        return right, (
            f"learned at {LEARNED} bits, the parity of {longest} is named right in at least {recurrences:.0%} of all "
            f"texts by an RNN and an LSTM, whatever the seed ({len(figures['RNN'])} each), and in "
            f"{transformer[-1]:.0%} by a Transformer with sinusoidal positions, chance being 50%; at {LEARNED} bits "
            f"the Transformer is right in {transformer[learned]:.0%}"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        lines = seed_curves(figures, "lengths", MODELS)
        return [Lines(f"Parity, learned at {LEARNED} bits", "bits", "accuracy at the last", lines)]
