"""BERT's 80 / 10 / 10 masking: accuracy on unmasked words, with and without unmasked targets in training."""

from pathlib import Path

import torch

from anyformer.analysis.claim import Decision, Figures, TrainedClaim
from anyformer.analysis.claim_runs import ATTENTION, learn, stack
from anyformer.core import Frame
from anyformer.drawing.figures import Bars, Panel
from anyformer.run import Run

MIXTURES = {"all masked": (1.0, 0.0), "80 / 10 / 10": (0.8, 0.1)}
RECIPE = ("data.tokenizer.kind=byte", "data.context=64", "objective.kind=masked_words", "train.steps=300",
          "train.batch_tokens=4096", "optimizer.lr=2e-3")  # fmt: skip
TEXTS = 64


class MaskMismatch(TrainedClaim):
    ids = ("PRE-24",)
    says = "In use there are no masks, so BERT leaves some of the words that it asks for unmasked in training."

    def find(self, folder: Path) -> Figures:
        accuracies, recipe = {}, (*RECIPE, *stack(ATTENTION, encoder=True))
        for name, (masked, noise) in MIXTURES.items():
            shares = (f"objective.masked={masked}", f"objective.random={noise}")
            run = learn(folder, f"masks-{masked:g}", "python_topics", *recipe, *shares)
            accuracies[name] = _accuracy_on_unmasked(run)
        return accuracies

    def decide(self, figures: Figures) -> Decision:
        gain = figures["80 / 10 / 10"] - figures["all masked"]
        return gain > 0.05, (
            f"a model predicts unmasked words right in {figures['80 / 10 / 10']:.0%} of all cases after "
            f"training with 80 / 10 / 10 and in {figures['all masked']:.0%} if all targets were masked in training"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        return [Bars("Prediction of unmasked words", "accuracy", list(figures.items()))]


@torch.no_grad()
def _accuracy_on_unmasked(run: Run) -> float:
    trained, model = run.trained("cpu"), run.model()
    ids = [trained.tokenizer.encode(record.text)[:48] for _, record in zip(range(TEXTS), run.records(), strict=False)]
    tokens = torch.tensor([row for row in ids if len(row) == 48])
    return float((model(tokens, Frame()).y.argmax(-1) == tokens).float().mean())
