"""A part whose matrices of some roles get a low-rank update of their own.

y = W x + (alpha / r) B A x,  A [r, in] random, B [out, r] zero at first          (LoRA, arXiv 2106.09685)
Before the first update the part computes what it computed without A and B. A fused matrix (query, key and value) has an
A and a B for each of its roles. W + (alpha / r) B A is a matrix like W, so that both can be merged after training.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn

from anyformer.core import Count, Linear, Model, ModelSpec, Module, Part, PartSpec, Positive, Role, Site, kind_of
from anyformer.errors import SpecError, at

FROZEN = "frozen"
"""Name of the wrapped matrix inside its wrapper."""


@dataclass(frozen=True, kw_only=True)
class LoRA(PartSpec, kind="lora"):
    """Adds a low-rank update to each matrix of some roles inside a part: y = W x + (alpha / rank) B A x."""

    sources = ("self", "memory")

    part: PartSpec
    """The part whose matrices get an update."""
    rank: Count = 8
    """Rank of the update: the width between A and B."""
    alpha: Positive = 16.0
    """The update is multiplied by alpha / rank, so that one learning rate suits all ranks."""
    roles: tuple[Role, ...] = ("query", "value")
    """Roles of the matrices that get an update: query, key, value, out, in, gate."""

    @classmethod
    def examples(cls) -> "tuple[LoRA, ...]":
        attention, mlp = kind_of(PartSpec, "attention"), kind_of(PartSpec, "mlp")
        return cls(part=attention(), rank=2), cls(part=mlp(), rank=3, alpha=3.0, roles=("in", "out"))

    def build(self, site: Site) -> Part:
        with at("part"):
            part = self.part.place(site)
        if not roles_in(part) & {*self.roles}:
            there = ", ".join(sorted(roles_in(part))) or "none"
            raise SpecError(
                f"lora: no matrix of {self.part.kind} has the role {' or '.join(self.roles)}; roles: {there}."
            )
        for parent in [*part.modules()]:
            for name, child in [*parent.named_children()]:
                if isinstance(child, Linear) and {role for role, _ in child.roles["weight"]} & {*self.roles}:
                    setattr(parent, name, LoRALinear(child, self))
        return part


class LoRALinear(Module):
    """A matrix with a low-rank update for each of its slices that has one of the roles."""

    def __init__(self, linear: Linear, spec: LoRA):
        super().__init__()
        slices = linear.roles["weight"]
        self.chosen = [role in spec.roles for role, _ in slices]
        self.scale = spec.alpha / spec.rank
        self.frozen = linear
        self.lora_a = Linear(linear.weight.shape[1], (spec.rank,) * sum(self.chosen), role="in")
        self.lora_b = nn.ModuleList(
            # the role of tensors that start at zero
            Linear(spec.rank, width, role="scalar")
            for (_, width), chosen in zip(slices, self.chosen, strict=True)
            if chosen
        )

    @property
    def weight(self) -> Tensor:
        return self.frozen.weight

    @property
    def widths(self) -> tuple[int, ...]:
        return self.frozen.widths

    def forward(self, x: Float[Tensor, "*batch i"]) -> Float[Tensor, "*batch o"]:
        low = iter(self.lora_a(x).chunk(len(self.lora_b), dim=-1))
        matrices = iter(self.lora_b)
        y: Tensor = self.frozen(x)
        if all(self.chosen):
            updates = [matrix(next(low)) for matrix in matrices]
            return y + self.scale * (updates[0] if len(updates) == 1 else torch.cat(updates, dim=-1))
        slices = [
            piece + self.scale * next(matrices)(next(low)) if chosen else piece
            for piece, chosen in zip(y.split(self.widths, dim=-1), self.chosen, strict=True)
        ]
        return torch.cat(slices, dim=-1)

    if TYPE_CHECKING:
        __call__ = forward

    def merged_weight(self) -> Float[Tensor, "o i"]:
        """W + (alpha / r) B A, computed in float64."""
        downs = iter(self.lora_a.weight.detach().double().chunk(len(self.lora_b)))
        ups: Iterator[Tensor] = (matrix.weight.detach().double() for matrix in self.lora_b)  # type: ignore[operator]
        weight = self.frozen.weight.detach()
        slices = [
            piece + self.scale * next(ups) @ next(downs) if chosen else piece
            for piece, chosen in zip(weight.double().split(self.widths), self.chosen, strict=True)
        ]
        return torch.cat(slices).to(weight.dtype)


def lora_parts(model: ModelSpec) -> list[tuple[str, LoRA]]:
    """Path and spec of each part with updates."""
    return [(path, spec) for path, spec in model.walk() if isinstance(spec, LoRA)]


def update_parameters(model: Model) -> set[nn.Parameter]:
    """The parameters A and B of all updates."""
    updates = [module for module in model.modules() if isinstance(module, LoRALinear)]
    return {
        parameter for update in updates for half in (update.lora_a, update.lora_b) for parameter in half.parameters()
    }


def merged(spec: ModelSpec, model: Model) -> tuple[ModelSpec, dict[str, Tensor]]:
    """The model without updates, and its tensors with the updates added to their matrices. A model that has no updates
    is returned as it is."""
    for path, part in lora_parts(spec):
        spec = spec.with_(path, part.part)
    tensors = dict(model.state_dict())
    for path, module in model.named_modules():
        if isinstance(module, LoRALinear):
            tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(f"{path}.")}
            tensors[f"{path}.weight"] = module.merged_weight()
            if module.frozen.bias is not None:
                tensors[f"{path}.bias"] = module.frozen.bias.detach()
    return spec, tensors


def roles_in(part: Part) -> set[Role]:
    """The roles of all matrices inside a part."""
    matrices = (module for module in part.modules() if isinstance(module, Linear))
    return {role for matrix in matrices for role, _ in matrix.roles["weight"]}
