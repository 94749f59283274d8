"""BERT's 80 / 10 / 10 masking: how unmasked words are represented, with and without unmasked targets in training.

Two measurements of a frozen encoder on texts without masks: how often its output layer names the word that it reads,
and how often a linear probe of the last states does, fitted by ridge regression on other texts. The probe does not
depend on what the output layer was trained for: it shows what a fine-tuned head could read from the states.
"""

from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from anyformer.analysis.claim import Decision, Figures, TrainedClaim
from anyformer.analysis.claim_runs import ATTENTION, learn, stack
from anyformer.core import Frame
from anyformer.drawing.figures import Bars, Panel
from anyformer.run import Run

MIXTURES = {"all masked": (1.0, 0.0), "80 / 10 / 10": (0.8, 0.1)}
RECIPE = ("data.tokenizer.kind=byte", "data.context=64", "objective.kind=masked_words", "train.steps=300",
          "train.batch_tokens=1024", "optimizer.lr=3e-3")  # fmt: skip
WINDOWS, LENGTH, RIDGE, SEEDS = 256, 48, 1e-3, (0, 1, 2)
PROBE = "probe: "


class MaskMismatch(TrainedClaim):
    ids = ("PRE-24",)
    says = "In use there are no masks, so BERT leaves some of the words that it asks for unmasked in training."

    def find(self, folder: Path) -> Figures:
        figures: dict[str, list[float]] = {}
        recipe = (*RECIPE, *stack(ATTENTION, dim=32, encoder=True))
        for seed in SEEDS:
            for name, (masked, noise) in MIXTURES.items():
                changes = (f"objective.masked={masked}", f"objective.random={noise}", f"seed={seed}")
                run = learn(folder, f"masks-{masked:g}-{seed}", "python_topics", *recipe, *changes)
                tokens, states, answers = _read(run)
                figures.setdefault(name, []).append(float((answers == tokens).float().mean()))
                figures.setdefault(PROBE + name, []).append(_probe(states, tokens))
        return figures

    def decide(self, figures: Figures) -> Decision:
        head, probe = (
            [b - a for a, b in zip(*(figures[prefix + name] for name in MIXTURES), strict=True)]
            for prefix in ("", PROBE)
        )
        masked, mixed = (f"{fmean(figures[name]):.0%}" for name in MIXTURES)
        probed = " and ".join(f"{fmean(figures[PROBE + name]):.1%}" for name in MIXTURES)
        return min(head) > 0.05 and (min(probe) > 0 or "depends"), (
            f"the output layer names {mixed} of the unmasked words after training with 80 / 10 / 10 and {masked} if "
            f"all targets were masked; a linear probe of the states names {probed} (all masked, 80 / 10 / 10; the "
            f"mean of {len(head)} seeds)"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        bars = [(name, fmean(values)) for name, values in figures.items()]
        return [Bars("Unmasked words, by the output layer and by a probe", "accuracy", bars)]


@torch.no_grad()
def _read(run: Run) -> tuple[Tensor, Tensor, Tensor]:
    """Unmasked windows of the validation split [b t], their last states [b t d], and the words named there [b t]."""
    trained, model = run.trained("cpu"), run.model()
    texts = (torch.tensor(trained.tokenizer.encode(record.text)) for record in run.records())
    windows = (text[: len(text) // LENGTH * LENGTH].unflatten(0, (-1, LENGTH)) for text in texts if len(text) >= LENGTH)
    tokens = torch.cat(list(windows))[:WINDOWS]
    states: Tensor = model(tokens, Frame(), logits=False).y
    return tokens, states, model.logits(states, Frame()).argmax(-1)


def _probe(states: Tensor, tokens: Tensor) -> float:
    """Accuracy on the second half of the windows of a ridge regression from states to words, fitted on the first."""
    half = len(tokens) // 2
    x = torch.cat((states, torch.ones_like(states[..., :1])), -1).double()
    fit, test = x[:half].flatten(0, 1), x[half:].flatten(0, 1)
    words = torch.nn.functional.one_hot(tokens[:half].flatten(), int(tokens.max()) + 1).double()
    weights = torch.linalg.solve(fit.T @ fit + RIDGE * len(fit) * torch.eye(fit.shape[1]).double(), fit.T @ words)
    return float(((test @ weights).argmax(-1) == tokens[half:].flatten()).double().mean())
