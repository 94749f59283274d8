"""The base of every kind of unit that pruning removes: a smaller dense model results, with a spec of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.core import Model, ModelSpec, Part, Spec, decode
from anyformer.core.part import Position
from anyformer.core.plain_data import assign
from anyformer.errors import CheckpointError, SpecError
from anyformer.shrink.unit_group import PartUnits, UnitGroup
from anyformer.training.runs.checkpoint import load_weights

RemainingUnits = Mapping[str, Sequence[int]]
"""Name of a group -> the units that stay, in order."""


@dataclass(frozen=True, kw_only=True)
class Removal(Spec):
    """What pruning removes."""

    def groups(self, spec: ModelSpec, model: Model) -> Sequence[UnitGroup]:
        """The removable units of a model. Those of one group are ranked against each other. Raises SpecError if the
        model has none."""
        raise NotImplementedError

    def smaller(self, spec: ModelSpec, model: Model, remaining: RemainingUnits) -> tuple[ModelSpec, dict[str, Tensor]]:
        """The spec and the tensors of the model with these units alone. `model` was built from `spec`."""
        raise NotImplementedError


def distinct(spec: ModelSpec) -> ModelSpec:
    """An equal spec in which no object occurs at two places, so that a part's `made_from` identifies its place."""
    return decode(ModelSpec, spec.to_dict())


def part_groups(model: Model, units: str) -> list[PartUnits]:
    """The removable units of all parts that have some of this name."""
    groups, refused = [], set[str]()
    for name, part in model.named_modules():
        if isinstance(part, Part) and part.removable is not None and part.removable.name == units:
            group = PartUnits(name, part, part.removable.number)
            if _depends_on_all(part) or not group.can_be_cut:
                refused.add(part.made_from.kind if part.made_from else type(part).__name__)
            else:
                groups.append(group)
    if not groups:
        others = (
            f" Its {', '.join(sorted(refused))} has positions that depend on the number of heads." if refused else ""
        )
        raise SpecError(f"--prune {units}: this model has no {units} that can be removed.{others}")
    return groups


def _depends_on_all(part: Part) -> bool:
    """True if a scheme of positions inside the part learns something for each head, or depends on their number."""
    return any(isinstance(child, Position) and child.acts_inside() and child.per_head for child in part.children())


def smaller_parts(spec: ModelSpec, model: Model, remaining: RemainingUnits) -> tuple[ModelSpec, dict[str, Tensor]]:
    """The model with these units of its parts alone. All parts of one spec must keep the same number."""
    data, tensors = spec.to_dict(), dict(model.state_dict())
    paths = {id(inner): path for path, inner in spec.walk()}
    for name, units in remaining.items():
        part = model.get_submodule(name)
        assert isinstance(part, Part) and part.made_from is not None and part.removable is not None
        for field, value in part.removable.fields_for(len(units)).items():
            assign(data, f"{paths[id(part.made_from)]}.{field}", value)
        cut = PartUnits(name, part, part.removable.number).cut(units)
        tensors |= {f"{name}.{key}": tensor for key, tensor in cut.items()}
    return decode(ModelSpec, data), tensors


@torch.no_grad()
def built(spec: ModelSpec, tensors: Mapping[str, Tensor], what: str) -> Model:
    """The model of a spec with these weights; SpecError if a part holds tensors that do not follow from the spec."""
    model = spec.build()
    try:
        load_weights(model, tensors)
    except CheckpointError as error:
        raise SpecError(f"--prune {what}: a part of this model depends on what is removed: {error}") from None
    return model.eval()
