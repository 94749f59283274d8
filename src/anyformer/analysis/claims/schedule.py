"""The minimum number of steps before each state can be computed, measured on the computation graph."""

from collections.abc import Mapping
from typing import Any

from anyformer.analysis.claim import Decision, Figures, Measured
from anyformer.analysis.complexity import steps_of
from anyformer.analysis.families import ATTENTION, RECURRENT
from anyformer.drawing.figures import Grid, Panel

LENGTH, DEPTH = 8, 3


class Schedule(Measured):
    ids = ("CLM-07", "VIZ-09")
    says = (
        "The state of layer l at time t of a recurrence has to wait for t + l - 1 steps, so nothing runs side by side; "
        "in attention all states of layer l are there after l steps."
    )

    def measure(self) -> Figures:
        return {"recurrent": _grid(RECURRENT), "attention": _grid(ATTENTION)}

    def decide(self, figures: Figures) -> Decision:
        waves = figures["recurrent"] == [[t + l - 1 for t in range(1, LENGTH + 1)] for l in range(1, DEPTH + 1)]  # noqa: E741
        levels = figures["attention"] == [[layer] * LENGTH for layer in range(1, DEPTH + 1)]
        return waves and levels, (
            f"the last state of {DEPTH} layers over {LENGTH} tokens is ready after {figures['recurrent'][-1][-1]:g} "
            f"steps in a recurrence, after {figures['attention'][-1][-1]:g} with attention"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        return [Grid(f"Steps before each state: {name}", "time", "layer", rows) for name, rows in figures.items()]


def _grid(kind: Mapping[str, Any]) -> list[list[float]]:
    """[layers t]: the longest chain of steps before each state."""
    return [steps_of(*[kind] * depth, length=LENGTH).latest.tolist() for depth in range(1, DEPTH + 1)]
