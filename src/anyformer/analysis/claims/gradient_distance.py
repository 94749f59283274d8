"""|dy_T / dx_(T-s)| against s: the influence of distant tokens before training."""

import torch

from anyformer.analysis.claim import Decision, Figures, Measured
from anyformer.analysis.families import ATTENTION, FEED_FORWARD, function, layers, residual
from anyformer.analysis.gradients import gradients_by_distance, slope
from anyformer.drawing.figures import Line, Lines, Panel

DIM, LENGTH, ROWS = 32, 96, 8
FALLS, FLAT = -0.05, 0.005
RECURRENT = {"RNN": {"kind": "rnn"}, "GRU": {"kind": "gru"}, "LSTM": {"kind": "lstm"}}


class GradientDistance(Measured):
    ids = ("CLM-04",)
    says = "With the distance between two tokens the gradient decays in a recurrence, and not in a Transformer."

    def measure(self) -> Figures:
        x = torch.randn(ROWS, LENGTH, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        stacks = {name: layers(kind, dim=DIM) for name, kind in RECURRENT.items()}
        stacks["S4D"] = layers({"kind": "s4d"}, dim=DIM)
        stacks["Transformer"] = residual(ATTENTION, FEED_FORWARD, depth=2, dim=DIM)
        return {name: gradients_by_distance(function(stack.double()), x) for name, stack in stacks.items()}

    def decide(self, figures: Figures) -> Decision:
        # Skip distance 0, which is dominated by the residual connection.
        changes = {name: slope(norms[1:]) for name, norms in figures.items()}
        right = abs(changes["Transformer"]) < FLAT and all(changes[name] < FALLS for name in RECURRENT)
        text = ", ".join(f"{name} {change:+.4f}" for name, change in changes.items())
        return right, f"with untrained weights the log of the gradient changes for each token of distance by: {text}"

    def picture(self, figures: Figures) -> list[Panel]:
        lines = [Line(name, range(len(norms)), norms) for name, norms in figures.items()]
        return [Lines("Gradient against distance", "tokens back", "|dy_T / dx_(T-s)|", lines, log_y=True)]
