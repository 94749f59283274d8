"""How long a run goes. Tokens and FLOPs become a number of steps before the start; only minutes follow the clock."""

import math
from dataclasses import dataclass

from anyformer.core import ModelSpec, Work, cost
from anyformer.training.recipes.settings import USUAL_STEPS, TrainSpec


@dataclass(frozen=True)
class Budget:
    """Either a number of steps or a time."""

    steps: int | None
    seconds: float | None = None

    def spent(self, step: int, wall_s: float) -> bool:
        """True: no further step."""
        if self.steps is not None:
            return step >= self.steps
        return self.seconds is not None and wall_s >= self.seconds

    def total(self, step: int, wall_s: float) -> int:
        """The number of steps that the schedule plans with; by the clock, at the pace so far."""
        if self.steps is not None:
            return self.steps
        assert self.seconds is not None
        return max(step + 1, round(step * self.seconds / wall_s)) if step and wall_s else USUAL_STEPS

    def share(self, step: int, wall_s: float) -> float:
        """How much of it is done, from 0 to 1."""
        done = step / self.steps if self.steps is not None else wall_s / (self.seconds or math.inf)
        return min(1.0, done)


def budget_of(train: TrainSpec, step_flops: int) -> Budget:
    """What the recipe allows."""
    if train.minutes is not None:
        return Budget(None, 60 * train.minutes)
    if train.tokens is not None:
        return Budget(-(-train.tokens // train.batch_tokens))
    if train.flops is not None:
        return Budget(max(1, int(train.flops // max(1, step_flops))))
    return Budget(train.steps or USUAL_STEPS)


def step_flops(model: ModelSpec, train: TrainSpec, context: int) -> int:
    """Operations of one update by the cost card: forward and backward over a full batch."""
    sides = 2 if model.needs_source else 1
    rows = max(1, train.batch_tokens // (sides * context))
    total = cost(model, Work(batch=1, length=context)).total
    return rows * (total.flops_forward + total.flops_backward)
