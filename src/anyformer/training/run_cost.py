"""The predicted time and memory of a run, from the cost of its model and stored rates; nothing is timed.

seconds = steps (overhead + FLOPs of an update / rate + parameters x time of an optimiser's update)
"""

from dataclasses import dataclass
from typing import Literal

from anyformer.core import Work, cost
from anyformer.training.loop.budget import budget_of, step_flops
from anyformer.training.loop.memory import estimate
from anyformer.training.recipes.recipe import Recipe


@dataclass(frozen=True)
class Rates:
    """What a kind of device does in a second, about."""

    flops: float
    """FLOPs of small models, forward and backward."""
    parameter_s: float
    """Seconds that the optimiser takes for a parameter."""
    overhead_s: float
    """Seconds of an update that do not depend on its size."""
    start_s: float
    """Seconds until the first update."""


RATES = {
    "cpu": Rates(flops=4e10, parameter_s=4e-9, overhead_s=5e-3, start_s=10),  # two cores of 2.5 GHz, measured
    "gpu": Rates(flops=1e14, parameter_s=2e-11, overhead_s=1.5e-2, start_s=20),  # one H200, from earlier benchmarks
}


@dataclass(frozen=True)
class RunCost:
    """What a run will take, about."""

    parameters: int
    steps: int | None
    """None if the budget is a time."""
    tokens: int | None
    seconds: float
    bytes: int


def predicted_run_cost(recipe: Recipe, device: Literal["cpu", "gpu"]) -> RunCost:
    """Time and memory of a complete recipe on a kind of device."""
    assert recipe.data is not None and recipe.objective is not None
    train, context, rates = recipe.train, recipe.data.context, RATES[device]
    model = recipe.objective.adapt(recipe.model)
    flops, parameters = step_flops(model, train, context), cost(model, Work(batch=1, length=context)).total.params
    budget = budget_of(train, flops)
    each = rates.overhead_s + flops / rates.flops + parameters * rates.parameter_s
    seconds = budget.seconds if budget.steps is None else rates.start_s + budget.steps * each
    fixed, row = estimate(model, context)
    rows = max(1, train.batch_tokens // (context * (2 if model.needs_source else 1)))
    tokens = None if budget.steps is None else budget.steps * train.batch_tokens
    return RunCost(parameters, budget.steps, tokens, float(seconds or 0.0), fixed + rows * row)
