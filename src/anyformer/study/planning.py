"""Plans a study: completes the recipes of all arms on the same data, and sizes them to the baseline's budget.

All widths scale in proportion, and the number of heads stays valid. Cost grows with the width, so the candidates are
the widest model under the baseline's budget, the next wider one, and round widths near them, which are efficient on
GPUs; the roundest within the tolerance is chosen. If there is none, one layer less and one more are tried, then two,
and so on to half and twice the depth.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from anyformer.core import ModelSpec, Spec, Work, decode
from anyformer.core.costs import total_cost
from anyformer.core.plain_data import Tree, assign
from anyformer.data.preparation.shards import Prepared
from anyformer.data.tokenizers.tokenizer import Tokenizer
from anyformer.disk import RECIPE, TOKENIZER
from anyformer.errors import SpecError
from anyformer.models.single import Single, stacks_of
from anyformer.models.stack import Stack
from anyformer.study.study import INIT_FROM, Match, Study, StudySpec
from anyformer.training.loop.budget import budget_of, step_flops
from anyformer.training.loop.trainer import Trainer
from anyformer.training.recipes.recipe import Recipe
from anyformer.training.recipes.resolve import settle
from anyformer.training.recipes.toml_layers import DEFAULT, TomlLayers
from anyformer.training.runs.checkpoint import run_recipe

STEPS: tuple[int, ...] = (*range(1, 17), 24, 32, 48, 64, 96, 128)
WIDEST, EQUAL = 1 << 16, 1e-3
ROUND = (64, 32, 16, 8, 4, 2, 1)
EVALUATIONS = 8
"""Default number of validations of a run; the first one, at an eighth of the budget, gives the early loss."""
WARM, TIMED = 3, 8
"""Number of warm-up steps and of timed steps for measuring the duration of a step."""
Measure = Callable[[ModelSpec], int]


@dataclass(frozen=True)
class Size:
    """Width and number of layers of a model; those of the first stack if there are several."""

    dim: int
    depth: int


def size_of(model: ModelSpec) -> Size:
    first = next(iter(stacks_of(model).values()))
    return Size(first.dim, first.stack.depth)


def resized(model: ModelSpec, size: Size) -> ModelSpec:
    """The model resized: all widths scale in proportion, all depths change by the same number of layers."""
    old, data = size_of(model), model.to_dict()
    ratio, more = size.dim / old.dim, size.depth - old.depth
    dims: dict[str, int] = {}
    for path, spec in model.walk():
        if isinstance(spec, Single):
            dims[path] = _scaled(spec.dim, ratio)
            _set(data, path, "dim", dims[path])
        elif isinstance(spec, Stack):
            _set(data, path, "depth", max(1, spec.depth + more))
        else:
            _scale_inside(data, path, spec, ratio, dims)
    return decode(ModelSpec, data)


def width_step(model: ModelSpec) -> int:
    """The smallest number whose multiples are valid widths of this model."""
    size = size_of(model)
    for step in STEPS:
        near = [step * (size.dim // step + more) for more in (1, 2, 3)]
        with suppress(SpecError):
            for dim in near:
                resized(model, replace(size, dim=dim)).build(device="meta")
            return step
    raise SpecError(f"no width near dim={size.dim} fits this model.")


def _scale_inside(data: Tree, path: str, spec: Spec, ratio: float, dims: Mapping[str, int]) -> None:
    """Scales the widths of a part; the width of a head stays even, as rotary positions need."""
    values: dict[str, Any] = {field.name: getattr(spec, field.name) for field in fields(spec)}
    if isinstance(values.get("hidden"), int):
        _set(data, path, "hidden", _scaled(values["hidden"], ratio))
    heads = values.get("heads")
    if not isinstance(heads, int) or "head_dim" not in values:
        return
    if values["head_dim"] is not None:
        _set(data, path, "head_dim", 2 * _scaled(values["head_dim"], ratio / 2))
    else:
        around = max((prefix for prefix in dims if not prefix or path.startswith(f"{prefix}.")), key=len)
        if (dim := dims[around]) % (2 * heads):
            _set(data, path, "head_dim", 2 * _scaled(dim, 1 / (2 * heads)))


def _scaled(width: int, ratio: float) -> int:
    return max(1, round(width * ratio))


def _set(data: Tree, path: str, name: str, value: int) -> None:
    assign(data, f"{path}.{name}" if path else name, value)


@dataclass(frozen=True)
class Budgets:
    """The cost of a model for one sequence of the study's context."""

    params: int
    flops: int
    """FLOPs of the forward and backward pass."""
    state_bytes: int
    activation_bytes: int


def budgets(model: ModelSpec, context: int) -> Budgets:
    """The costs of a model for one sequence of `context` tokens."""
    total = total_cost(model, Work(batch=1, length=context))
    return Budgets(total.params, total.flops_forward + total.flops_backward, total.state_bytes, total.activation_bytes)


def measure_of(match: Match, context: int) -> Measure:
    """The function that measures what `study.match` compares."""
    if match == "params":  # needs no forward pass
        return lambda model: sum(parameter.numel() for parameter in model.build(device="meta").parameters())
    return lambda model: int(asdict(budgets(model, context))["state_bytes" if match == "state" else "flops"])


def fit(
    model: ModelSpec, target: int, measure: Measure, tolerance: float, what: str = "params"
) -> tuple[ModelSpec, float]:
    """The model, resized so that `measure` gives `target` within the tolerance, and the relative difference that is
    left; raises SpecError if impossible."""
    start, best = size_of(model), (float("inf"), size_of(model))
    count = cache(lambda size: measure(resized(model, size)))
    if abs(_off(count(start), target)) <= EQUAL:
        return model, _off(count(start), target)
    step = width_step(model)
    depths = (start.depth + sign * more for more in range(start.depth + 1) for sign in (-1, 1))
    for depth in (depth for depth in dict.fromkeys(depths) if 2 * depth >= start.depth):
        for size in _candidates(count, target, step, replace(start, depth=depth), tolerance):
            off = _off(count(size), target)
            if abs(off) <= tolerance:
                return resized(model, size), off
            best = min(best, (off, size), key=lambda one: abs(one[0]))
    off, size = best
    raise SpecError(
        f"{what}: the baseline has {target:,}, and this arm comes no nearer than {count(size):,} ({off:+.1%}), with "
        f"dim={size.dim} and depth={size.depth}; study.tolerance={tolerance:g} allows {tolerance:.1%}. "
        f"Match something else, allow more, or give the baseline another size."
    )


def _candidates(count: Callable[[Size], int], target: int, step: int, start: Size, tolerance: float) -> Iterator[Size]:
    """Sizes with widths near the target, the roundest first and then the nearest."""
    low, high = _around(count, target, step, start)
    rounds = [step * power for power in ROUND if (step * power) % 2 == 0]
    near = [width // each * each for each in rounds for width in (high, low + each)]
    round_widths = [width for width in near if abs(width / max(low, 1) - 1) <= tolerance]
    sizes = [replace(start, dim=width) for width in (low, high) if 0 < width < WIDEST]
    yield from (replace(start, dim=width) for width in round_widths if width)
    yield from sorted(sizes, key=lambda size: abs(_off(count(size), target)))


def _around(count: Callable[[Size], int], target: int, step: int, start: Size) -> tuple[int, int]:
    """The widest model of a depth that stays under the target, and the next wider one."""
    low, high, guess = 0, WIDEST // step, max(1, start.dim // step)
    while high - low > 1:
        value = count(replace(start, dim=step * guess))
        low, high = (guess, high) if value <= target else (low, guess)
        # The cost is between linear and quadratic in the width; the clamp below guarantees progress.
        aim = round(guess * (target / value) ** 0.55) if value else 2 * guess
        guess = min(max(aim, low + 1), high - 1)
    return step * low, step * high


def _off(value: int, target: int) -> float:
    return value / target - 1 if target else float(value != target)


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
    _refuse_unfit_starts(study, recipes, prepared)
    matched = _timed(recipes, prepared) if study.spec.match == "time" else _sized(recipes, study.spec, prepared)
    arms = []
    for name, (recipe, off) in matched.items():
        flops = (recipe.train.steps or 0) * step_flops(recipe.model, recipe.train, prepared.context)
        changes = recipes[name].diff(recipe)
        arms.append(Arm(name, recipe, budgets(recipe.model, prepared.context), flops, off, changes))
    return tuple(arms)


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
        for key, (ours, theirs) in first.data.diff(recipe.data).items():
            raise SpecError(f"data.{key}: {ours!r} in {baseline}, {theirs!r} in {name}. Arms must read the same data.")


def _refuse_unfit_starts(study: Study, recipes: Mapping[str, Recipe], prepared: Prepared) -> None:
    """Raises SpecError if an arm starts from a run that has other ids for words than the prepared data, or whose
    weights have read records that the study holds out."""
    for name, recipe in recipes.items():
        folder = Path(recipe.init_from or "")
        if study.arms[name].origin(INIT_FROM) != f"arm {name}" or not (folder / RECIPE).is_file():
            continue
        where, theirs, ours = f"arms.{name}.{INIT_FROM}: {folder}", run_recipe(folder).data, recipe.data
        if Tokenizer.load(folder / TOKENIZER).fingerprint() != prepared.tokenizer.fingerprint():
            raise SpecError(
                f"{where} has another tokenizer than these data. Use its own: data.tokenizer.kind=file "
                f"data.tokenizer.path={folder / TOKENIZER}"
            )
        if theirs is None or ours is None or theirs.source != ours.source:
            continue
        if (theirs.valid, theirs.test, theirs.seed) != (ours.valid, ours.test, ours.seed):
            raise SpecError(
                f"{where} was trained with other splits of these data, so it may have read records that are held out "
                f"here. Use its own: data.valid={theirs.valid} data.test={theirs.test} data.seed={theirs.seed}"
            )


def _sized(recipes: Mapping[str, Recipe], spec: StudySpec, prepared: Prepared) -> dict[str, tuple[Recipe, float]]:
    """Gives each arm the size at which it costs as much as the baseline."""
    measure = measure_of(spec.match, prepared.context)
    baseline = next(iter(recipes.values())).model
    target, matched = measure(baseline), {}
    for name, recipe in recipes.items():
        if spec.match == "none":
            model, off = recipe.model, measure(recipe.model) / target - 1
        else:
            with _of_arm(name):
                model, off = fit(recipe.model, target, measure, spec.tolerance, spec.match)
        matched[name] = replace(recipe, model=model), off
    return matched


def _timed(recipes: Mapping[str, Recipe], prepared: Prepared) -> dict[str, tuple[Recipe, float]]:
    """Gives each arm as many steps as fit into the baseline's time; models stay unchanged."""
    seconds = {name: _step_seconds(recipe, prepared) for name, recipe in recipes.items()}
    baseline, first = next(iter(recipes.items()))
    if first.train.steps is None:
        raise SpecError("study.match=time: train.minutes already gives all arms the same time. Use match=none.")
    total, matched = first.train.steps * seconds[baseline], {}
    for name, recipe in recipes.items():
        steps = max(1, round(total / seconds[name]))
        changed = replace(recipe, train=replace(recipe.train, steps=steps))
        matched[name] = changed, steps * seconds[name] / total - 1
    return matched


def _step_seconds(recipe: Recipe, prepared: Prepared) -> float:
    """The median duration of a step on this machine, which outliers do not change."""
    probe = replace(recipe, train=replace(recipe.train, steps=WARM + TIMED))
    walls = [step.wall_s for step in Trainer(probe, prepared).steps()]
    return median(after - before for before, after in pairwise(walls[WARM - 1 :]))


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
