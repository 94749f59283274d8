"""A scaling ladder: smaller sizes of a recipe are trained, the largest is predicted from them and then trained too.

The recipe is the top of the ladder. Below it width and depth shrink together, so that the next rung has about `ratio`
times the weights, which are proportional to width^2 depth; the width makes up for rounding the depth. Data, schedule
and everything else stay the same.
"""

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w

from anyformer.core import ModelSpec, Module, Role
from anyformer.data.preparation.pipeline import prepared_for
from anyformer.disk import store
from anyformer.errors import OUT_OF_TIME, Interrupted, SpecError
from anyformer.run import Run, train
from anyformer.statistics.scaling import FEWEST_LEVELS, FEWEST_POINTS, NotEnough
from anyformer.study.judging import judge_run
from anyformer.study.planning import Size, resized, size_of, width_step
from anyformer.study.scaling_laws import LadderPoint, Laws, laws
from anyformer.study.study import TESTED
from anyformer.study.study_folder import standing
from anyformer.training import Recipe, Watcher
from anyformer.training.loop.budget import budget_of, step_flops
from anyformer.training.recipes.resolve import data_of, draft, name_of, settle

PREDICTION = "prediction.json"
ROUND = 8
"""Widths are rounded to multiples of this, which are efficient on GPUs."""
OUTSIDE: tuple[Role, ...] = ("embed", "position", "head")
"""Roles of embeddings and output heads, which scaling laws do not count (Kaplan et al. 2020)."""
GO_ON = "all is saved. The same command goes on."
Tell = Callable[[str], None]


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


@dataclass(frozen=True)
class Deadline(Watcher):
    """Interrupts a run at a time of `time.monotonic`, or never."""

    at: float | None

    def out_of_time(self) -> bool:
        return self.at is not None and time.monotonic() >= self.at


def scale(
    target: str,
    *overrides: str,
    rungs: int = 6,
    ratio: float = 2.0,
    budgets: int = 1,
    minutes: float | None = None,
    out: Path | None = None,
    cache: Path | None = None,
    tell: Tell = lambda text: None,
) -> Scaled:
    """Trains all rungs of a ladder. Finished runs are not repeated, so the same call resumes after an interruption.

    rungs: number of sizes; the recipe is the largest.
    ratio: how many times the weights of the one below each size has, about.
    budgets: number of training lengths for each size: the recipe's, half of it, a quarter, ...
    minutes: time after which the current run is saved and `Interrupted` is raised.
    """
    deadline = Deadline(None if minutes is None else time.monotonic() + 60 * minutes)
    name, runs = planned(target, *overrides, rungs=rungs, ratio=ratio, budgets=budgets, cache=cache)
    folder = out or Path("runs") / f"{name}-scale"
    climb = partial(_climb, folder, cache=cache, tell=tell, deadline=deadline)
    points = [climb(rung) for rung in runs if not rung.top]
    known = laws(points)
    predictions = _predicted(folder, known, [rung for rung in runs if rung.top])
    for prediction in predictions:
        interval = f"{prediction.low:.4f} to {prediction.high:.4f}"
        tell(f"{prediction.rung}: predicted {prediction.loss:.4f} ({interval}) by {prediction.law}")
    law = known.best(known.longest)
    why = str(law) if isinstance(law, NotEnough) else "the largest was trained before it could be predicted"
    points += [climb(rung) for rung in runs if rung.top]
    return Scaled(name, folder, tuple(points), laws(points), tuple(predictions), "" if predictions else why)


def too_few(rungs: int, budgets: int) -> str | None:
    """A warning if the largest size of a ladder cannot be predicted because there are too few smaller ones."""
    of_both = budgets >= FEWEST_LEVELS and rungs > FEWEST_LEVELS  # a law of sizes and tokens together
    if of_both or rungs > FEWEST_POINTS:
        return None
    return (
        f"the largest size will not be predicted: a power law needs {FEWEST_POINTS} smaller sizes, here there are "
        f"{rungs - 1}. Use rungs={FEWEST_POINTS + 1} (--rungs {FEWEST_POINTS + 1}) or more."
    )


def planned(
    target: str, *overrides: str, rungs: int, ratio: float = 2.0, budgets: int = 1, cache: Path | None = None
) -> tuple[str, list[Rung]]:
    """The name of a ladder and its runs, without training them."""
    document = draft(target, overrides).on(TESTED)
    prepared = prepared_for(data_of(document), cache)
    base = settle(document, prepared, name_of(target, document))
    return base.name, ladder(replace(base.recipe, name=None), prepared.context, rungs, budgets, ratio)


def ladder(base: Recipe, context: int, rungs: int, budgets: int = 1, ratio: float = 2.0) -> list[Rung]:
    """The rungs, from the smallest size and the shortest training up."""
    if rungs < 2:
        raise SpecError(f"rungs={rungs}: a ladder needs at least 2.")
    if not 1 < ratio < math.inf:
        raise SpecError(f"ratio={ratio:g}: each size has more weights than the one below. Use a number above 1.")
    size, step = size_of(base.model), width_step(base.model)
    steps = budget_of(base.train, step_flops(base.model, base.train, context)).steps
    if steps is None:
        raise SpecError("train.minutes: sizes are compared after the same tokens. Use train.steps or train.tokens.")
    runs: dict[str, Rung] = {}
    for place in range(rungs):
        share = ratio ** (place + 1 - rungs)  # of the weights
        depth = max(1, round(size.depth * share ** (1 / 3)))
        smaller = Size(_width(size.dim * math.sqrt(share * size.depth / depth), step), depth)
        top = place == rungs - 1
        model = base.model if top else resized(base.model, smaller)
        for half in reversed(range(budgets)):
            count = max(1, steps >> half)
            train_spec = replace(base.train, steps=count, tokens=None, flops=None, stop=0)
            name, recipe = f"{smaller.dim}x{smaller.depth}-{count}", replace(base, model=model, train=train_spec)
            flops, tokens = count * step_flops(model, train_spec, context), count * train_spec.batch_tokens
            runs.setdefault(name, Rung(name, recipe, weights_of(model), tokens, flops, top))
    return list(runs.values())


def _width(width: float, step: int) -> int:
    """The nearest width that the model can have, rounded to a multiple of `ROUND` if it is large."""
    each = math.lcm(step, ROUND if width >= 4 * ROUND else 2)
    return max(each, round(width / each) * each)


def weights_of(model: ModelSpec) -> int:
    """Number of parameters, without embeddings and heads."""
    modules = [module for module in model.build(device="meta").modules() if isinstance(module, Module)]
    return sum(
        tensor.numel()
        for module in modules
        for name, tensor in module.named_parameters(recurse=False)
        if name not in module.roles or module.roles[name][0][0] not in OUTSIDE
    )


def _climb(folder: Path, rung: Rung, cache: Path | None, tell: Tell, deadline: Deadline) -> LadderPoint:
    """Trains a rung, unless it is complete; its recipe file must not exist with another recipe."""
    path, file = folder / rung.name, folder / "recipes" / f"{rung.name}.toml"
    text = tomli_w.dumps(rung.recipe.to_dict())
    if file.exists() and file.read_text(encoding="utf-8") != text:
        raise SpecError(f"{file}: exists with another recipe. Start another: out=FOLDER (--out FOLDER).")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    state, _ = standing(path)
    run = Run.open(path) if state == "complete" else _trained(file, path, cache, deadline)
    judged = judge_run(path, "auto", cache)
    seconds = max((float(line["wall_s"]) for line in run.metrics() if line.get("wall_s") is not None), default=math.nan)
    devices = int(run.environment.get("processes", 1))
    size = f"{rung.weights:,} weights, {rung.tokens:,} tokens"
    tell(f"{rung.name}: {size}, loss {judged.value:.4f} on {judged.basis}, {judged.checkpoint} checkpoint")
    return LadderPoint(rung.name, rung.weights, rung.tokens, rung.flops, judged.value, seconds, devices)


def _trained(recipe: Path, path: Path, cache: Path | None, deadline: Deadline) -> Run:
    """Begins or resumes the run of a rung, and trains it to its end."""
    if deadline.out_of_time():
        raise Interrupted(f"the time is up: {GO_ON}", OUT_OF_TIME)
    try:
        if standing(path)[0] == "missing":
            return train(recipe, out=path, cache=cache, watcher=deadline)
        return train(path, resume=True, cache=cache, watcher=deadline)
    except Interrupted as error:
        why = "the time is up" if error.exit_code == OUT_OF_TIME else "interrupted"
        raise Interrupted(f"{why}: {GO_ON}", error.exit_code) from None


def _predicted(folder: Path, known: Laws, tops: Sequence[Rung]) -> list[LadderPrediction]:
    """The predictions for the largest size, read from the file if they were made before."""
    file = folder / PREDICTION
    if file.exists():
        return [LadderPrediction(**facts) for facts in json.loads(file.read_text(encoding="utf-8"))]
    predictions = []
    for rung in tops:
        if prediction := known.predict(rung.weights, rung.tokens):
            law, loss = prediction
            assert loss.low is not None and loss.high is not None
            predictions.append(LadderPrediction(rung.name, law, loss.value, loss.low, loss.high))
    store(file, json.dumps([asdict(prediction) for prediction in predictions], indent=1))
    return predictions
