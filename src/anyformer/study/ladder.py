"""A ladder of sizes of one recipe: all but the largest are trained, the largest is predicted, then trained as well.

The recipe is the top of the ladder. Below it width and depth shrink together, so that the weights, which go as
width^2 depth, halve from rung to rung; data, schedule and everything else stay the same.
"""

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from anyformer.core import ModelSpec, Module, Role
from anyformer.errors import CheckpointError, SpecError
from anyformer.statistics.intervals import Interval
from anyformer.statistics.scaling import NotEnough
from anyformer.study.scaling_laws import LadderPoint, Laws, laws
from anyformer.study.sizing import Size, resized, size_of, width_step
from anyformer.study.study_folder import standing
from anyformer.training import Recipe, Run, train
from anyformer.training.loop.budget import budget_of, step_flops
from anyformer.training.recipes.resolve import data_of, draft, name_of, settle
from anyformer.training.runs.data_cache import prepared_for

PREDICTION = "prediction.json"
ROUND = 8
"""Widths that GPUs like are multiples of it."""
OUTSIDE: tuple[Role, ...] = ("embed", "position", "head")
"""Tables of words and places, which the laws leave out (Kaplan et al. 2020)."""
Tell = Callable[[str], None]


@dataclass(frozen=True)
class LadderPlan:
    """How many rungs, and for how long each is trained."""

    rungs: int = 6
    """Sizes, each of about twice the weights of the one below it, the recipe itself the largest."""
    budgets: int = 1
    """Lengths of training for each size: the recipe's, half of it, a quarter, .. Three show the effect of data."""


@dataclass(frozen=True)
class Rung:
    """One run of the ladder."""

    name: str
    recipe: Recipe
    weights: int
    """Parameters, tables of words and places not counted: N."""
    tokens: int
    """That it learns from, padding included: D."""
    flops: int
    """Of the whole training, by the cost card."""
    top: bool
    """Of the largest size: predicted before it is trained."""


@dataclass(frozen=True)
class LadderPrediction:
    """What the smaller sizes say of a larger one."""

    rung: str
    law: str
    loss: float
    low: float
    high: float


@dataclass(frozen=True)
class Scaled:
    """A ladder that was climbed."""

    name: str
    folder: Path
    points: tuple[LadderPoint, ...]
    laws: Laws
    """Of all points, the largest included."""
    predictions: tuple[LadderPrediction, ...]
    """Written down before the largest was trained; none where there was not enough evidence."""
    lacking: str
    """Why there is none."""

    def off(self, prediction: LadderPrediction) -> float:
        """By which share the loss was above what was predicted."""
        return next(point.loss for point in self.points if point.name == prediction.rung) / prediction.loss - 1

    def to_dict(self) -> dict[str, Any]:
        predicted = [{**asdict(prediction), "off": self.off(prediction)} for prediction in self.predictions]
        return {
            "name": self.name,
            "rungs": [point.to_dict() for point in self.points],
            "laws": self.laws.to_dict(),
            "predictions": predicted,
            "lacking": self.lacking,
        }


def scale(
    target: str,
    *overrides: str,
    plan: LadderPlan = LadderPlan(),  # noqa: B008
    out: Path | None = None,
    cache: Path | None = None,
    tell: Tell = lambda text: None,
) -> Scaled:
    """Climbs the ladder. What is done already is not repeated, so the same call goes on after an interruption."""
    name, rungs = _plan(target, overrides, plan, cache)
    folder = out or Path("runs") / f"{name}-scale"
    points = [_climb(folder, rung, cache, tell) for rung in rungs if not rung.top]
    known = laws(points)
    predictions = _predicted(folder, known, [rung for rung in rungs if rung.top])
    for prediction in predictions:
        interval = f"{prediction.low:.4f} to {prediction.high:.4f}"
        tell(f"{prediction.rung}: predicted {prediction.loss:.4f} ({interval}) by {prediction.law}")
    points += [_climb(folder, rung, cache, tell) for rung in rungs if rung.top]
    return Scaled(name, folder, tuple(points), laws(points), tuple(predictions), _lacking(known, predictions))


def _lacking(known: Laws, predictions: Sequence[LadderPrediction]) -> str:
    if predictions:
        return ""
    law = known.best(known.longest)
    return str(law) if isinstance(law, NotEnough) else "the largest was trained before it could be predicted"


def planned(target: str, *overrides: str, plan: LadderPlan, cache: Path | None = None) -> list[Rung]:
    """What would be trained."""
    return _plan(target, overrides, plan, cache)[1]


def _plan(target: str, overrides: Sequence[str], plan: LadderPlan, cache: Path | None) -> tuple[str, list[Rung]]:
    document = draft(target, overrides)
    prepared = prepared_for(data_of(document), cache)
    base = settle(document, prepared, name_of(target, document))
    return base.name, ladder(replace(base.recipe, name=None), prepared.context, plan)


def ladder(base: Recipe, context: int, plan: LadderPlan) -> list[Rung]:
    """From the smallest size and the shortest training up."""
    if plan.rungs < 2:
        raise SpecError(f"rungs={plan.rungs}: a ladder has at least 2.")
    size, step = size_of(base.model), width_step(base.model)
    steps = budget_of(base.train, step_flops(base.model, base.train, context)).steps
    if steps is None:
        raise SpecError("train.minutes: sizes are compared after the same tokens. Use train.steps or train.tokens.")
    rungs: dict[str, Rung] = {}
    for place in range(plan.rungs):
        share = 2.0 ** (-(plan.rungs - 1 - place) / 3)
        smaller = Size(_width(size.dim * share, step), max(1, round(size.depth * share)))
        for half in reversed(range(plan.budgets)):
            rung = _rung(base, smaller, max(1, steps >> half), context, top=place == plan.rungs - 1)
            rungs.setdefault(rung.name, rung)
    return list(rungs.values())


def _width(width: float, step: int) -> int:
    """A width that the model can have, round where that is near."""
    each = math.lcm(step, ROUND if width >= 4 * ROUND else 2)
    return max(each, round(width / each) * each)


def _rung(base: Recipe, size: Size, steps: int, context: int, *, top: bool) -> Rung:
    model = base.model if top else resized(base.model, size)
    train_spec = replace(base.train, steps=steps, tokens=None, flops=None)
    flops = steps * step_flops(model, train_spec, context)
    tokens = steps * train_spec.batch_tokens
    recipe = replace(base, model=model, train=train_spec)
    return Rung(f"{size.dim}x{size.depth}-{steps}", recipe, weights_of(model), tokens, flops, top)


def weights_of(model: ModelSpec) -> int:
    """Parameters that are no table of words or places."""
    modules = [module for module in model.build(device="meta").modules() if isinstance(module, Module)]
    count = 0
    for module in modules:
        tensors = dict(module.named_parameters(recurse=False))
        outside = {name for name, slices in module.roles.items() if slices[0][0] in OUTSIDE}
        count += sum(tensor.numel() for name, tensor in tensors.items() if name not in outside)
    return count


def _climb(folder: Path, rung: Rung, cache: Path | None, tell: Tell) -> LadderPoint:
    path, recipe = folder / rung.name, _recipe_file(folder, rung)
    state = standing(path).state
    if state == "missing":
        run = train(recipe, out=path, cache=cache)
    else:
        run = Run.open(path) if state == "complete" else train(path, resume=True, cache=cache)
    point = _point(rung, run)
    tell(f"{rung.name}: {point.weights:,} weights, {point.tokens:,} tokens, loss {point.loss:.4f}")
    return point


def _recipe_file(folder: Path, rung: Rung) -> Path:
    """What a rung is trained from; a ladder goes on as it began."""
    file, text = folder / "recipes" / f"{rung.name}.toml", tomli_w.dumps(rung.recipe.to_dict())
    if file.exists() and file.read_text(encoding="utf-8") != text:
        raise SpecError(f"{file}: another recipe than this one stands here. Start another ladder: --out FOLDER.")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def _point(rung: Rung, run: Run) -> LadderPoint:
    losses = [float(line["valid_loss"]) for line in run.metrics() if line.get("valid_loss") is not None]
    if not losses:
        raise CheckpointError(f"{run.folder}: has no validation loss. Keep some data for it: data.valid=0.05.")
    seconds = max((float(line["wall_s"]) for line in run.metrics() if line.get("wall_s") is not None), default=math.nan)
    devices = int(run.environment.get("processes", 1))
    return LadderPoint(rung.name, rung.weights, rung.tokens, rung.flops, losses[-1], seconds, devices)


def _predicted(folder: Path, known: Laws, tops: Sequence[Rung]) -> list[LadderPrediction]:
    """From the file, where it was said before."""
    file = folder / PREDICTION
    if file.exists():
        return [LadderPrediction(**facts) for facts in json.loads(file.read_text(encoding="utf-8"))]
    predictions = [
        _prediction(rung, *law_and_loss) for rung in tops if (law_and_loss := known.predict(rung.weights, rung.tokens))
    ]
    fresh = file.with_name(f".{file.name}")
    fresh.write_text(json.dumps([asdict(prediction) for prediction in predictions], indent=1), encoding="utf-8")
    os.replace(fresh, file)
    return predictions


def _prediction(rung: Rung, law: str, loss: Interval) -> LadderPrediction:
    assert loss.low is not None and loss.high is not None
    return LadderPrediction(rung.name, law, loss.value, loss.low, loss.high)
