"""Plans a study: completes the recipes of all arms on the same data, and sizes them to the baseline's budget."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any

from anyformer.data.preparation.prepared import Prepared
from anyformer.errors import SpecError
from anyformer.study.sizing import Budgets, SizedModel, budgets, fit, measure_of
from anyformer.study.study import Study, StudySpec
from anyformer.training.loop.budget import budget_of, step_flops
from anyformer.training.loop.trainer import Trainer
from anyformer.training.recipes.recipe import Recipe
from anyformer.training.recipes.resolve import settle
from anyformer.training.recipes.toml_layers import DEFAULT, TomlLayers

EVALUATIONS = 8
"""Default number of validations of a run; the first one, at an eighth of the budget, gives the early loss."""
WARM, TIMED = 3, 8
"""Number of warm-up steps and of timed steps for measuring the duration of a step."""


@dataclass(frozen=True)
class Arm:
    """An arm of a study, trained once for every seed."""

    name: str
    recipe: Recipe
    budgets: Budgets
    train_flops: int
    """FLOPs of the whole run; 0 if the budget is a time."""
    off: float
    """Relative difference from the baseline in what is matched."""
    changes: Mapping[str, tuple[Any, Any]]
    """Changes made by matching: dotted key -> values before and after."""


def plan(study: Study, prepared: Prepared) -> tuple[Arm, ...]:
    """All arms, the baseline first and unchanged."""
    recipes = {name: _settled(name, document, prepared) for name, document in study.arms.items()}
    _refuse_other_data(recipes)
    matched = _timed(recipes, prepared) if study.spec.match == "time" else _sized(recipes, study.spec, prepared)
    return tuple(_arm(name, recipes[name], matched[name], prepared.context) for name in recipes)


def _settled(name: str, document: TomlLayers, prepared: Prepared) -> Recipe:
    with _of_arm(name):
        loaded = settle(document, prepared, name)
        recipe, train = replace(loaded.recipe, name=None), loaded.recipe.train
        steps = budget_of(train, step_flops(recipe.model, train, prepared.context)).steps
    if steps is None:
        return recipe
    recipe = replace(recipe, train=replace(train, steps=steps, tokens=None, flops=None))
    if document.origin("evaluate.every") != DEFAULT:
        return recipe
    return replace(recipe, evaluate=replace(recipe.evaluate, every=max(1, steps // EVALUATIONS)))


def _refuse_other_data(recipes: Mapping[str, Recipe]) -> None:
    """Raises SpecError if arms have different data: losses are comparable on the same tokens only."""
    baseline, first = next(iter(recipes.items()))
    for name, recipe in recipes.items():
        assert first.data is not None and recipe.data is not None
        differing = {f"data.{key}": pair for key, pair in first.data.diff(recipe.data).items()}
        for key, pair in differing.items():
            raise SpecError(f"{key}: {pair[0]!r} in {baseline}, {pair[1]!r} in {name}. Arms must read the same data.")


def _sized(recipes: Mapping[str, Recipe], spec: StudySpec, prepared: Prepared) -> dict[str, tuple[Recipe, SizedModel]]:
    measure = measure_of(spec.match, prepared.context)
    baseline = next(iter(recipes.values())).model
    target, matched = measure(baseline), {}
    for name, recipe in recipes.items():
        if spec.match == "none":
            one = SizedModel(recipe.model, {}, measure(recipe.model) / target - 1)
        else:
            with _of_arm(name):
                one = fit(recipe.model, target, measure, spec.tolerance, spec.match)
        matched[name] = replace(recipe, model=one.model), one
    return matched


def _timed(recipes: Mapping[str, Recipe], prepared: Prepared) -> dict[str, tuple[Recipe, SizedModel]]:
    """Gives each arm as many steps as fit into the baseline's time; models stay unchanged."""
    seconds = {name: _step_seconds(recipe, prepared) for name, recipe in recipes.items()}
    baseline, first = next(iter(recipes.items()))
    if first.train.steps is None:
        raise SpecError("study.match=time: train.minutes already gives all arms the same time. Use match=none.")
    total, matched = first.train.steps * seconds[baseline], {}
    for name, recipe in recipes.items():
        steps = max(1, round(total / seconds[name]))
        changed = replace(recipe, train=replace(recipe.train, steps=steps))
        changes = recipe.diff(changed)
        matched[name] = changed, SizedModel(recipe.model, changes, steps * seconds[name] / total - 1)
    return matched


def _step_seconds(recipe: Recipe, prepared: Prepared) -> float:
    """The median duration of a step on this machine, which outliers do not change."""
    probe = replace(recipe, train=replace(recipe.train, steps=WARM + TIMED))
    walls = [step.wall_s for step in Trainer(probe, prepared).steps()]
    return median(after - before for before, after in pairwise(walls[WARM - 1 :]))


def _arm(name: str, before: Recipe, matched: tuple[Recipe, SizedModel], context: int) -> Arm:
    recipe, one = matched
    flops = (recipe.train.steps or 0) * step_flops(recipe.model, recipe.train, context)
    changes = one.changes if one.model is before.model else {f"model.{key}": pair for key, pair in one.changes.items()}
    return Arm(name, recipe, budgets(recipe.model, context), flops, one.off, changes)


@contextmanager
def _of_arm(name: str) -> Iterator[None]:
    """Adds the name of the arm to errors raised inside the context."""
    try:
        yield
    except SpecError as error:
        whose = f"arm {name}"
        problems = [
            problem if whose in problem.text else replace(problem, text=f"{problem.text} ({whose})")
            for problem in error.problems
        ]
        raise SpecError(problems=problems) from None
