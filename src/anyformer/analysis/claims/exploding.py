"""The exploding gradient: a norm of the recurrent matrix above 1 is necessary but not sufficient."""

import math

import torch

from anyformer.analysis.claim import Decision, Figures, Measured
from anyformer.analysis.gradients import linear, orthogonal, slope, state_gradients
from anyformer.drawing.figures import Line, Lines, Panel

SIZE, GAIN, STEPS = 16, 1.5, 12
EXACT = 1e-6
NAMES = ("linear", "tanh, small inputs", "tanh, large inputs", "linear, triangular")


class ExplodingGradient(Measured):
    ids = ("CLM-02",)
    says = "Where the norm of the recurrent matrix is above 1, gradients grow exponentially with the distance."

    def measure(self) -> Figures:
        weight = GAIN * orthogonal(SIZE)
        shifting = GAIN * torch.diag(torch.ones(SIZE - 1, dtype=torch.float64), 1) + 0.1 * torch.eye(SIZE).double()
        return {
            "norm": GAIN,
            "linear": state_gradients(weight, linear, 0.0, STEPS),
            "tanh, small inputs": state_gradients(weight, torch.tanh, 1e-4, STEPS),
            "tanh, large inputs": state_gradients(weight, torch.tanh, 3.0, STEPS),
            "linear, triangular": state_gradients(shifting, linear, 0.0, 6 * STEPS),
        }

    def decide(self, figures: Figures) -> Decision:
        seen = {name: slope(figures[name]) for name in NAMES}
        grows = abs(seen["linear"] - math.log(figures["norm"])) < EXACT
        shrinks = seen["tanh, large inputs"] < 0 and slope(figures["linear, triangular"][-STEPS:]) < 0
        return "depends" if grows and shrinks else "holds" if grows else "does not hold", (
            f"with |W| = {figures['norm']:g} the log of the gradient changes by {seen['linear']:+.4f} a step in a "
            f"linear network (log {figures['norm']:g}), by {seen['tanh, small inputs']:+.2f} with tanh near 0, but by "
            f"{seen['tanh, large inputs']:+.2f} with tanh saturated; and it vanishes where no eigenvalue is above 1"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        lines = [Line(name, range(1, len(figures[name]) + 1), figures[name]) for name in NAMES]
        return [Lines(f"Gradient of the state, |W| = {GAIN:g}", "steps back", "|dh_t / dh_0|", lines, log_y=True)]
