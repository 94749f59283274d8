"""Gradient clipping: g <- g min(1, c / |g|), which prevents updates so large that training diverges."""

import math

import torch

from anyformer.analysis.claim import Decision, Figures, Measured
from anyformer.analysis.gradients import orthogonal
from anyformer.drawing.figures import Line, Lines, Panel
from anyformer.optim.optimizer import clip

SIZE, GAIN, LENGTH, STEPS, RATE, LIMIT = 8, 1.5, 20, 60, 0.05, 1.0
CEILING = 1e30
"""Losses that are larger or not finite are drawn at this value."""


class Clipping(Measured):
    ids = ("CLM-03",)
    says = "Exploding gradients make large updates and unstable training; clipping them keeps it stable."

    def measure(self) -> Figures:
        return {"plain": _train(None), "clipped": _train(LIMIT)}

    def decide(self, figures: Figures) -> Decision:
        diverged_at = next((step for step, loss in enumerate(figures["plain"]) if loss >= CEILING), None)
        stable = max(figures["clipped"]) < CEILING and figures["clipped"][-1] < figures["clipped"][0]
        if diverged_at is None or not stable:
            return "does not hold", f"last losses {figures['plain'][-1]:.3g} and {figures['clipped'][-1]:.3g}"
        return "holds", (
            f"without clipping the loss diverges after {diverged_at} updates; clipped to {LIMIT:g} it falls from "
            f"{figures['clipped'][0]:.3g} to {figures['clipped'][-1]:.3g} in {STEPS}"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        lines = [Line(name, range(len(figures[name])), figures[name]) for name in ("plain", "clipped")]
        return [Lines("A linear recurrence that explodes", "updates", "loss", lines, log_y=True)]


def _train(limit: float | None) -> list[float]:
    """Losses of gradient descent on a linear recurrence whose last state should equal a target."""
    weight = (GAIN * orthogonal(SIZE)).requires_grad_()
    start, target = torch.ones(SIZE, dtype=torch.float64), torch.zeros(SIZE, dtype=torch.float64)
    losses = []
    for _ in range(STEPS):
        h = start
        for _ in range(LENGTH):
            h = weight @ h
        loss = (h - target).square().mean()
        losses.append(min(loss.item(), CEILING) if math.isfinite(loss.item()) else CEILING)
        (weight.grad,) = torch.autograd.grad(loss, weight)
        clip([weight], limit)
        with torch.no_grad():
            weight -= RATE * weight.grad
    return losses
