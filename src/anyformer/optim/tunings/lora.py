"""LoRA: the model is frozen, and low-rank updates of its matrices learn alone (arXiv 2106.09685).

Each part of a stack that has matrices of the roles is wrapped in the part `lora`. A head that scores classes learns
too, since it is new in most tasks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import nn

from anyformer.core import Count, Model, ModelSpec, PartSpec, Positive, Role, Site
from anyformer.errors import Problem, SpecError
from anyformer.optim.tunings.tuning_spec import TuningSpec
from anyformer.parts.combine.lora import FROZEN, LoRA, lora_parts, roles_in, update_parameters


@dataclass(frozen=True, kw_only=True)
class LoRATuning(TuningSpec, kind="lora"):
    """Low-rank updates of matrices learn, and a head of classes; everything else is frozen."""

    rank: Count = 8
    """Rank of the updates."""
    alpha: Positive = 16.0
    """An update is multiplied by alpha / rank."""
    roles: tuple[Role, ...] = ("query", "value")
    """Roles of the matrices that get an update: query, key, value, out, in, gate."""

    def adapt(self, model: ModelSpec) -> ModelSpec:
        if lora_parts(model):
            return model
        adapted = model
        for path, part in _outermost_parts(model):
            if _roles(part, model) & {*self.roles}:
                wrapped = LoRA(part=part, rank=self.rank, alpha=self.alpha, roles=self.roles)
                adapted = adapted.with_(path, wrapped)
        if adapted == model:
            text = f"no layer of the model has a matrix of the role {' or '.join(self.roles)}."
            known = sorted({role for _, part in _outermost_parts(model) for role in _roles(part, model)})
            raise SpecError(problems=[Problem("tune.roles", f"{text} Roles: {', '.join(known)}.")])
        return adapted

    def factors(self, spec: ModelSpec, model: Model) -> Mapping[nn.Parameter, float]:
        learning = update_parameters(model)
        if spec.output_stack.head.outcomes is not None:
            learning |= {*model.output_head().parameters()}
        return {parameter: float(parameter in learning) for parameter in model.parameters()}

    def usual_rate(self, rate: float) -> float:
        return 10 * rate

    def pretrained_name(self, name: str) -> str:
        return name.replace(f".{FROZEN}.", ".")


def _outermost_parts(model: ModelSpec) -> list[tuple[str, PartSpec]]:
    """Path and part of each branch, without the parts inside these parts."""
    parts: list[tuple[str, PartSpec]] = []
    for path, spec in model.walk():
        if isinstance(spec, PartSpec) and not any(path.startswith(f"{outer}.") for outer, _ in parts):
            parts.append((path, spec))
    return parts


def _roles(part: PartSpec, model: ModelSpec) -> set[Role]:
    """The roles of the matrices of a part; none if it cannot stand alone, such as one that reads final states."""
    stack = model.output_stack
    site = Site(dim=stack.dim, stream_dim=stack.dim, causal=stack.causal, max_len=stack.max_len, memory_dim=stack.dim)
    for each in (site, replace(site, causal=not site.causal)):
        try:
            with torch.device("meta"):
                return roles_in(part.place(each))
        except SpecError:
            continue
    return set()
