"""Whole layers: the stream passes on unchanged where one was. Each stack of a model loses the same share."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from anyformer.core import Model, ModelSpec, Part, decode
from anyformer.core.plain_data import assign
from anyformer.errors import SpecError
from anyformer.models.single import Single, SingleModel, stack_modules_of, stacks_of
from anyformer.shrink.removal import RemainingUnits, Removal
from anyformer.shrink.unit_group import LayerUnits, UnitGroup


@dataclass(frozen=True, kw_only=True)
class LayerRemoval(Removal, kind="layers"):
    """Whole layers."""

    def groups(self, spec: ModelSpec, model: Model) -> Sequence[UnitGroup]:
        stacks = zip(stacks_of(spec).values(), stack_modules_of(model).items(), strict=True)
        return [_group(stack, name, module) for stack, (name, module) in stacks]

    def smaller(self, spec: ModelSpec, model: Model, remaining: RemainingUnits) -> tuple[ModelSpec, dict[str, Tensor]]:
        data, tensors = spec.to_dict(), dict(model.state_dict())
        specs = dict(zip(stack_modules_of(model), stacks_of(spec).values(), strict=True))
        for name, layers in remaining.items():
            order, path = specs[name].stack.order, f"{name}.stack" if name else "stack"
            names = [order[layer] for layer in layers]
            blocks = {key: block.to_dict() for key, block in specs[name].stack.blocks.items() if key in names}
            assign(data, f"{path}.blocks", blocks)
            assign(data, f"{path}.layout", names if len(blocks) > 1 else [])
            assign(data, f"{path}.depth", len(layers))
            tensors = _renumbered(tensors, f"{path}.layers.", layers)
        return decode(ModelSpec, data), tensors


def _group(spec: Single, name: str, module: SingleModel) -> LayerUnits:
    stack = spec.stack
    refusals = {
        "they share their weights": any(block.share for block in stack.blocks.values()),
        "the stack is reversible": stack.residual != "plain",
        "each position decides after how many it stops (halting)": stack.halting is not None,
        "the model has early exits behind some of them": spec.exits is not None,
        "a part depends on the number of its layer": stack.numbers_layers,
        "a layer changes the length": any(isinstance(part, Part) and part.changes_length for part in module.modules()),
    }
    if reasons := [reason for reason, applies in refusals.items() if applies]:
        raise SpecError(f"--prune layers: the layers of this model cannot be removed: {reasons[0]}.")
    return LayerUnits(name, module.stack.calls())


def _renumbered(tensors: dict[str, Tensor], prefix: str, keep: Sequence[int]) -> dict[str, Tensor]:
    """The tensors with the layers that stay, numbered from 0."""
    numbers = {str(layer): str(place) for place, layer in enumerate(keep)}
    pattern = re.compile(rf"{re.escape(prefix)}(\d+)\.")
    renamed = {}
    for name, tensor in tensors.items():
        if (match := pattern.match(name)) is None:
            renamed[name] = tensor
        elif match[1] in numbers:
            renamed[f"{prefix}{numbers[match[1]]}.{name[match.end() :]}"] = tensor
    return renamed
