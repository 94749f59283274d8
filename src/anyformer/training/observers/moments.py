"""When an observer acts: every so many steps, and at the end."""

from dataclasses import dataclass

from anyformer.training.loop.budget import Budget
from anyformer.training.loop.step import Step


@dataclass(frozen=True)
class Moments:
    """True for every n-th step and for the last one."""

    every: int
    budget: Budget

    def __call__(self, step: Step) -> bool:
        return self.is_last(step) or bool(self.every and step.number % self.every == 0)

    def is_last(self, step: Step) -> bool:
        return self.budget.spent(step.number, step.wall_s)
