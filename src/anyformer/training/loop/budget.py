"""The length of a run. Budgets in tokens or FLOPs are converted to steps before the start; minutes use the clock."""

import math
from dataclasses import dataclass

from anyformer.core import ModelSpec, Work, cost
from anyformer.training.recipes.settings import USUAL_STEPS, TrainSpec


@dataclass(frozen=True)
class Budget:
    """The budget of a run: a number of steps or a time in seconds."""

    steps: int | None
    seconds: float | None = None

    def spent(self, step: int, wall_s: float) -> bool:
        """True if the run ends after this step."""
        if self.steps is not None:
            return step >= self.steps
        return self.seconds is not None and wall_s >= self.seconds

    def total(self, step: int, wall_s: float) -> int:
        """The total number of steps for the schedule; estimated from the speed so far if the budget is a time."""
        if self.steps is not None:
            return self.steps
        assert self.seconds is not None
        return max(step + 1, round(step * self.seconds / wall_s)) if step and wall_s else USUAL_STEPS

    def share(self, step: int, wall_s: float) -> float:
        """The fraction of the budget that is used, from 0 to 1."""
        done = step / self.steps if self.steps is not None else wall_s / (self.seconds or math.inf)
        return min(1.0, done)


def budget_of(train: TrainSpec, step_flops: int) -> Budget:
    """The budget that the `train` section of a recipe sets."""
    if train.minutes is not None:
        return Budget(None, 60 * train.minutes)
    if train.tokens is not None:
        return Budget(-(-train.tokens // train.batch_tokens))
    if train.flops is not None:
        return Budget(max(1, int(train.flops // max(1, step_flops))))
    return Budget(train.steps or USUAL_STEPS)


def step_flops(model: ModelSpec, train: TrainSpec, context: int) -> int:
    """FLOPs of one update: forward and backward passes over a full batch."""
    sides = 2 if model.needs_source else 1
    rows = max(1, train.batch_tokens // (sides * context))
    total = cost(model, Work(batch=1, length=context)).total
    return rows * (total.flops_forward + total.flops_backward)
