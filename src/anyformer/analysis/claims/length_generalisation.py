"""Parity, trained at one length and tested at others: does a model learn the rule for all lengths?"""

from pathlib import Path

from anyformer.analysis.claim import Decision, Figures, TrainedClaim, curves
from anyformer.analysis.claim_runs import LSTM, last_tag_accuracy, learn, stack
from anyformer.data.synthetic.parity import Parity
from anyformer.drawing.figures import Lines, Panel

LEARNED, LENGTHS, COUNT = 40, (20, 40, 80, 120, 200), 200
ABSOLUTE = '{kind="attention", heads=4}'
POSITION = 'model.position={kind="sinusoidal"}'
RECIPE = (f"data.source.length={LEARNED}", "data.source.count=4000", "data.context=256", "train.steps=400",
          "train.batch_tokens=2048", "optimizer.lr=5e-3", "objective.kind=token_labels")  # fmt: skip


class LengthGeneralisation(TrainedClaim):
    ids = ("CLM-21",)
    says = (
        "A recurrence can learn a rule that holds at every length; a Transformer fails beyond the lengths it has seen."
    )

    def find(self, folder: Path) -> Figures:
        runs = {
            "LSTM": learn(folder, "parity-lstm", "parity", *RECIPE, *stack(LSTM, dim=32, depth=1)),
            "Transformer": learn(folder, "parity-attention", "parity", *RECIPE, *stack(ABSOLUTE), POSITION),
        }
        tasks = [Parity(length=length, count=COUNT, seed=1) for length in LENGTHS]
        accuracies = {name: [last_tag_accuracy(run, task) for task in tasks] for name, run in runs.items()}
        return {"lengths": LENGTHS, **accuracies}

    def decide(self, figures: Figures) -> Decision:
        seen = {name: dict(zip(figures["lengths"], figures[name], strict=True)) for name in ("LSTM", "Transformer")}
        longest = figures["lengths"][-1]
        right = seen["LSTM"][longest] > 0.95 and seen["Transformer"][longest] < 0.65
        return right, (
            f"learned at {LEARNED} bits, the parity of {longest} is named right in {seen['LSTM'][longest]:.0%} of "
            f"all texts by an LSTM and in {seen['Transformer'][longest]:.0%} by a Transformer with sinusoidal "
            f"positions, chance being 50%; at {LEARNED} bits in {seen['LSTM'][LEARNED]:.0%} and "
            f"{seen['Transformer'][LEARNED]:.0%}"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        lines = curves(figures, "lengths", ("LSTM", "Transformer"))
        return [Lines(f"Parity, learned at {LEARNED} bits", "bits", "accuracy at the last", lines)]
