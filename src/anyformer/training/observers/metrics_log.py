"""metrics.jsonl: a line for every few steps."""

import math

from anyformer.training.loop.step import Step
from anyformer.training.observers.moments import Moments
from anyformer.training.runs.run_folder import RunFolder

TIMES = ("wall_s", "tokens_per_s", "peak_bytes")
"""Keys whose values differ between two otherwise identical runs."""


class Metrics:
    """Writes steps to metrics.jsonl."""

    def __init__(self, folder: RunFolder, when: Moments):
        self.folder, self.when = folder, when

    def __call__(self, step: Step) -> None:
        if self.when(step) or step.status != "applied":
            self.folder.metric(line(step))


def finite(value: float) -> float | None:
    """The value, or None if it is infinite or not a number, which JSON cannot write."""
    return value if math.isfinite(value) else None


def line(step: Step) -> dict[str, object]:
    """A step as a line of metrics.jsonl."""
    return {
        "step": step.number,
        "epoch": step.epoch,
        "tokens": step.tokens,
        "loss": finite(step.loss),
        "terms": {name: finite(value) for name, value in step.terms.items()},
        "lr": step.lr,
        "gradient_norm": finite(step.gradient_norm),
        "status": step.status,
        "wall_s": round(step.wall_s, 3),
        "tokens_per_s": round(step.tokens_per_s, 1),
        "peak_bytes": step.peak_bytes,
    }
