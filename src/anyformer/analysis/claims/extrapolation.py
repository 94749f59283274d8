"""Texts longer than in training: the loss against the length for each way of telling positions, and for an RNN.

The task is to copy, at every position, the symbol two places before. It is the same task everywhere, so a loss that
rises with the length shows what positions beyond the training length do to a model.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.analysis.claim import Decision, Figures, TrainedClaim, mean_curve, seed_curves
from anyformer.analysis.families import FEED_FORWARD, decoder
from anyformer.analysis.fitting import fit
from anyformer.core import Frame, Model
from anyformer.drawing.figures import Lines, Panel
from anyformer.parts.inits.xavier import Xavier

LEARNED, LENGTHS, SEEDS = 32, (32, 64, 128, 256), (0, 1, 2)
LAG, SYMBOLS, TEXTS, STEPS = 2, 16, 24, 150
ABSOLUTE, RELATIVE = ("sinusoidal", "learned"), ("t5_bias", "RNN")
NAMES = (*ABSOLUTE, *RELATIVE, "none")
STRONG = 0.5
"""Nats by which the loss must rise up to the longest text to count as a strong degradation."""


class Extrapolation(TrainedClaim):
    ids = ("POS-10",)
    says = "Sinusoidal positions can go on beyond the length seen in training; in practice that does not really work."

    def find(self, folder: Path) -> Figures:
        losses: dict[str, list[list[float]]] = {name: [] for name in NAMES}
        for seed in SEEDS:
            for name in NAMES:
                model = _model(name, seed)
                fit(model.parameters(), partial(_loss, model, LEARNED), steps=STEPS, lr=5e-3, seed=seed)
                losses[name].append(_curve(model, seed))
        return {"lengths": LENGTHS, **losses}

    def decide(self, figures: Figures) -> Decision:
        rises = {name: [losses[-1] - losses[0] for losses in figures[name]] for name in NAMES}
        least_absolute = min(min(rises[name]) for name in ABSOLUTE)
        most_relative = max(max(rises[name]) for name in RELATIVE)
        strong, less = least_absolute > STRONG, most_relative < least_absolute
        means = {name: mean_curve(figures[name]) for name in NAMES}
        text = ", ".join(f"{name} {means[name][0]:.2f} to {means[name][-1]:.2f}" for name in NAMES)
        return "holds" if strong and less else "depends" if strong or less else "does not hold", (
            f"trained on {LEARNED} symbols, the loss in nats goes from {LEARNED} to {figures['lengths'][-1]} symbols: "
            f"{text} (the mean of {len(figures['RNN'])} seeds)"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        lines = seed_curves(figures, "lengths", NAMES)
        return [Lines(f"Copying, learned at {LEARNED} symbols", "symbols", "nats", lines, log_x=True)]


def _model(name: str, seed: int) -> Model:
    """A decoder of two layers that tells positions in this way."""
    inside = {"kind": name} if name in RELATIVE else None
    attention: Mapping[str, Any] = {"kind": "attention", "heads": 4, "position": inside}
    mixer = {"kind": "rnn"} if name == "RNN" else attention
    spec = decoder(mixer, FEED_FORWARD, depth=2, dim=32, max_len=LENGTHS[-1]).with_("init", Xavier())
    return spec.with_("position", {"kind": name} if name in ABSOLUTE else None).build(seed=seed)


def _loss(model: Model, length: int, rng: torch.Generator) -> Tensor:
    words = torch.randint(SYMBOLS, (TEXTS, length), generator=rng)
    y: Tensor = model(words, Frame()).y
    return F.cross_entropy(y[:, LAG:].flatten(0, 1), words[:, :-LAG].flatten())


@torch.no_grad()
def _curve(model: Model, seed: int) -> list[float]:
    """The loss on fresh texts of each length."""
    model.eval()
    return [float(_loss(model, length, torch.Generator().manual_seed(1000 + seed))) for length in LENGTHS]
