"""The vanishing gradient: |dh_t/dh_k| <= (max|phi'| sigma_max(W))^(t-k), with equality in a linear network."""

import math

import torch

from anyformer.analysis.claim import Decision, Figures, Measured
from anyformer.analysis.gradients import linear, orthogonal, slope, state_gradients
from anyformer.drawing.figures import Line, Lines, Panel

SIZE, GAIN, STEPS = 16, 0.5, 40
EXACT = 1e-6


class VanishingGradient(Measured):
    ids = ("CLM-01",)
    says = "Where the norm of the recurrent matrix is below 1, gradients shrink exponentially with the distance."

    def measure(self) -> Figures:
        weight = GAIN * orthogonal(SIZE)
        return {
            "norm": GAIN,
            "linear": state_gradients(weight, linear, 0.5, STEPS),
            "tanh": state_gradients(weight, torch.tanh, 0.5, STEPS),
            "norm 3, tanh saturated": state_gradients(6 * weight, torch.tanh, 10.0, STEPS),
        }

    def decide(self, figures: Figures) -> Decision:
        bound = [figures["norm"] ** t for t in range(1, STEPS + 1)]
        equal = abs(slope(figures["linear"]) - math.log(figures["norm"])) < EXACT
        below = all(is_ <= most * (1 + EXACT) for is_, most in zip(figures["tanh"], bound, strict=True))
        also = slope(figures["norm 3, tanh saturated"])
        return equal and below, (
            f"with |W| = {figures['norm']:g} the log of the gradient changes by {slope(figures['linear']):.4f} a step "
            f"in a linear network (log {figures['norm']:g} = {math.log(figures['norm']):.4f}) and by "
            f"{slope(figures['tanh']):.4f} with tanh; but this is sufficient, not necessary: with |W| = 3 and tanh "
            f"saturated it changes by {also:.2f}"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        steps = range(1, STEPS + 1)
        lines = [Line(name, steps, figures[name]) for name in ("linear", "tanh", "norm 3, tanh saturated")]
        lines.append(Line("|W|^t", steps, [figures["norm"] ** t for t in steps], theory=True))
        return [Lines("Gradient of the state", "steps back", "|dh_t / dh_0|", lines, log_y=True)]
