"""Resizes a model in width and depth: all widths scale in proportion, and the number of heads stays valid.

Sizes a model to the baseline's parameters, FLOPs or state size by searching over the width, then the depth.

Cost grows with the width, so the candidates are the widest model under the baseline's budget, the next wider one, and
round widths near them, which are efficient on GPUs; the roundest within the tolerance is chosen. If there is none, one
layer less and one more are tried, then two, and so on to half and twice the depth.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from typing import Any

from anyformer.core import ModelSpec, Spec, Work, cost, decode
from anyformer.core.paths import Tree, assign
from anyformer.errors import SpecError
from anyformer.models.single import Single, stacks_of
from anyformer.models.stack import Stack
from anyformer.study.study import Match

STEPS: tuple[int, ...] = (*range(1, 17), 24, 32, 48, 64, 96, 128)


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
    step: int
    for step in STEPS:
        near = [step * (size.dim // step + more) for more in (1, 2, 3)]
        if all(_builds(model, Size(dim, size.depth)) for dim in near):
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
    elif (dim := _enclosing(path, dims)) % (2 * heads):
        _set(data, path, "head_dim", 2 * _scaled(dim, 1 / (2 * heads)))


def _builds(model: ModelSpec, size: Size) -> bool:
    try:
        resized(model, size).build(device="meta")
    except SpecError:
        return False
    return True


def _enclosing(path: str, dims: Mapping[str, int]) -> int:
    """The width of the stack that contains a part."""
    inside = [prefix for prefix in dims if not prefix or path.startswith(f"{prefix}.")]
    return dims[max(inside, key=len)]


def _scaled(width: int, ratio: float) -> int:
    return max(1, round(width * ratio))


def _set(data: Tree, path: str, name: str, value: int) -> None:
    assign(data, f"{path}.{name}" if path else name, value)


WIDEST, EQUAL = 1 << 16, 1e-3
ROUND = (64, 32, 16, 8, 4, 2, 1)
Measure = Callable[[ModelSpec], int]
Count = Callable[[Size], int]


@dataclass(frozen=True)
class Budgets:
    """The cost of a model for one sequence of the study's context."""

    params: int
    flops: int
    """FLOPs of the forward and backward pass."""
    state_bytes: int
    activation_bytes: int


@dataclass(frozen=True)
class SizedModel:
    """A model sized to the baseline's budget, and how far it is from it."""

    model: ModelSpec
    changes: dict[str, tuple[Any, Any]]
    """Dotted key -> values before and after."""
    off: float
    """Relative difference from the baseline's budget; negative if below it."""


def budgets(model: ModelSpec, context: int) -> Budgets:
    """The costs of a model for one sequence of `context` tokens."""
    total = cost(model, Work(batch=1, length=context)).total
    return Budgets(total.params, total.flops_forward + total.flops_backward, total.state_bytes, total.activation_bytes)


def measure_of(match: Match, context: int) -> Measure:
    """The function that measures what `study.match` compares."""
    if match == "params":  # needs no forward pass
        return lambda model: sum(parameter.numel() for parameter in model.build(device="meta").parameters())
    return lambda model: int(asdict(budgets(model, context))["state_bytes" if match == "state" else "flops"])


def fit(model: ModelSpec, target: int, measure: Measure, tolerance: float, what: str = "params") -> SizedModel:
    """The model, resized so that `measure` gives `target` within the tolerance; raises SpecError if impossible."""
    start, best = size_of(model), (float("inf"), size_of(model))
    count = cache(lambda size: measure(resized(model, size)))
    if abs(_off(count(start), target)) <= EQUAL:
        return SizedModel(model, {}, _off(count(start), target))
    step = width_step(model)
    for depth in _depths(start.depth):
        for size in _candidates(count, target, step, replace(start, depth=depth), tolerance):
            off = _off(count(size), target)
            if abs(off) <= tolerance:
                sized = resized(model, size)
                return SizedModel(sized, model.diff(sized), off)
            best = min(best, (off, size), key=lambda one: abs(one[0]))
    off, size = best
    raise SpecError(
        f"{what}: the baseline has {target:,}, and this arm comes no nearer than {count(size):,} ({off:+.1%}), with "
        f"dim={size.dim} and depth={size.depth}; study.tolerance={tolerance:g} allows {tolerance:.1%}. "
        f"Match something else, allow more, or give the baseline another size."
    )


def _candidates(count: Count, target: int, step: int, start: Size, tolerance: float) -> Iterator[Size]:
    """Sizes with widths near the target, the roundest first and then the nearest."""
    low, high = _around(count, target, step, start)
    rounds = [step * power for power in ROUND if (step * power) % 2 == 0]
    near = [width // each * each for each in rounds for width in (high, low + each)]
    round_widths = [width for width in near if abs(width / max(low, 1) - 1) <= tolerance]
    sizes = [replace(start, dim=width) for width in (low, high) if 0 < width < WIDEST]
    yield from (replace(start, dim=width) for width in round_widths if width)
    yield from sorted(sizes, key=lambda size: abs(_off(count(size), target)))


def _around(count: Count, target: int, step: int, start: Size) -> tuple[int, int]:
    """The widest model of a depth that stays under the target, and the next wider one."""
    low, high, guess = 0, WIDEST // step, max(1, start.dim // step)
    while high - low > 1:
        value = count(replace(start, dim=step * guess))
        low, high = (guess, high) if value <= target else (low, guess)
        # The cost is between linear and quadratic in the width; the clamp below guarantees progress.
        aim = round(guess * (target / value) ** 0.55) if value else 2 * guess
        guess = min(max(aim, low + 1), high - 1)
    return step * low, step * high


def _depths(depth: int) -> Iterator[int]:
    yield depth
    for more in range(1, depth + 1):
        yield from (other for other in (depth - more, depth + more) if 2 * other >= depth)


def _off(value: int, target: int) -> float:
    return value / target - 1 if target else float(value != target)
