"""Resizes a model in width and depth: all widths scale in proportion, and the number of heads stays valid."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from anyformer.core import ModelSpec, Spec, decode
from anyformer.core.paths import Tree, assign
from anyformer.errors import SpecError
from anyformer.models.single import Single, stacks_of
from anyformer.models.stack import Stack

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
