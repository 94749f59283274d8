"""A scaling ladder: smaller sizes of a recipe are trained, the largest is predicted from them and then trained too.

The recipe is the top of the ladder. Below it width and depth shrink together, so that the number of weights, which is
proportional to width^2 depth, halves with each rung; data, schedule and everything else stay the same.
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
from anyformer.run import Run, train
from anyformer.statistics.intervals import Interval
from anyformer.statistics.scaling import NotEnough
from anyformer.study.scaling_laws import LadderPoint, Laws, laws
from anyformer.study.sizing import Size, resized, size_of, width_step
from anyformer.study.study_folder import standing
from anyformer.training import Recipe
from anyformer.training.loop.budget import budget_of, step_flops
from anyformer.training.recipes.resolve import data_of, draft, name_of, settle
from anyformer.training.runs.data_cache import prepared_for

PREDICTION = "prediction.json"
ROUND = 8
"""Widths are rounded to multiples of this, which are efficient on GPUs."""
OUTSIDE: tuple[Role, ...] = ("embed", "position", "head")
"""Roles of embeddings and output heads, which scaling laws do not count (Kaplan et al. 2020)."""
Tell = Callable[[str], None]


@dataclass(frozen=True)
class LadderPlan:
    """The number of sizes of a ladder and of training lengths for each size."""

    rungs: int = 6
    """Number of sizes, each with about twice the weights of the one below; the recipe is the largest."""
    budgets: int = 1
    """Number of training lengths for each size: the recipe's, half of it, a quarter, ..."""


@dataclass(frozen=True)
class Rung:
    """One run of the ladder."""

    name: str
    recipe: Recipe
    weights: int
    """N: number of parameters, without embeddings and heads."""
    tokens: int
    """D: number of training tokens, padding included."""
    flops: int
    """FLOPs of the whole training."""
    top: bool
    """True for the largest size, whose loss is predicted before it is trained."""


@dataclass(frozen=True)
class LadderPrediction:
    """The loss of the largest size as predicted from the smaller sizes, with its interval."""

    rung: str
    law: str
    loss: float
    low: float
    high: float


@dataclass(frozen=True)
class Scaled:
    """The results of a ladder."""

    name: str
    folder: Path
    points: tuple[LadderPoint, ...]
    laws: Laws
    """Scaling laws fitted to all points, the largest included."""
    predictions: tuple[LadderPrediction, ...]
    """Predictions made before the largest size was trained; empty if there was not enough evidence."""
    lacking: str
    """Reason why there are no predictions; empty if there are."""

    def off(self, prediction: LadderPrediction) -> float:
        """Relative error of a prediction: measured loss / predicted loss - 1."""
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
    """Trains all rungs of a ladder. Finished runs are not repeated, so the same call resumes after an interruption."""
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
    """The runs of a ladder, without training them."""
    return _plan(target, overrides, plan, cache)[1]


def _plan(target: str, overrides: Sequence[str], plan: LadderPlan, cache: Path | None) -> tuple[str, list[Rung]]:
    document = draft(target, overrides)
    prepared = prepared_for(data_of(document), cache)
    base = settle(document, prepared, name_of(target, document))
    return base.name, ladder(replace(base.recipe, name=None), prepared.context, plan)


def ladder(base: Recipe, context: int, plan: LadderPlan) -> list[Rung]:
    """The rungs, from the smallest size and the shortest training up."""
    if plan.rungs < 2:
        raise SpecError(f"rungs={plan.rungs}: a ladder needs at least 2.")
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
    """The nearest width that the model can have, rounded to a multiple of `ROUND` if it is large."""
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
    """Number of parameters, without embeddings and heads."""
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
    """Writes the recipe file of a rung; raises SpecError if the file exists with another recipe."""
    file, text = folder / "recipes" / f"{rung.name}.toml", tomli_w.dumps(rung.recipe.to_dict())
    if file.exists() and file.read_text(encoding="utf-8") != text:
        raise SpecError(f"{file}: exists with another recipe. Start another ladder: --out FOLDER.")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def _point(rung: Rung, run: Run) -> LadderPoint:
    losses = [float(line["valid_loss"]) for line in run.metrics() if line.get("valid_loss") is not None]
    if not losses:
        raise CheckpointError(f"{run.folder}: has no validation loss. Set a validation split: data.valid=0.05.")
    seconds = max((float(line["wall_s"]) for line in run.metrics() if line.get("wall_s") is not None), default=math.nan)
    devices = int(run.environment.get("processes", 1))
    return LadderPoint(rung.name, rung.weights, rung.tokens, rung.flops, losses[-1], seconds, devices)


def _predicted(folder: Path, known: Laws, tops: Sequence[Rung]) -> list[LadderPrediction]:
    """The predictions for the largest size, read from the file if they were made before."""
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
