"""An objective and its models as one module: what is compiled, copied to every device, or divided among them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch import nn

from anyformer.core import Model
from anyformer.data.batching.batch import Batch
from anyformer.objectives.objective import Loss, Objective
from anyformer.training.distributed.fsdp import blocks
from anyformer.training.distributed.world import World
from anyformer.training.loop.budget import Budget
from anyformer.training.loop.truncated_bptt import CarriedState, CarryingModel
from anyformer.training.recipes.recipe import Recipe
from anyformer.training.recipes.settings import TrainSpec

LONG_RUN_FLOPS = 3e15
"""On a CPU: what takes hours pays for a compiler that needs minutes."""
SMALL_UPDATE_FLOPS = 2e13
"""On a GPU: it is done with fewer before the host has asked for them, kernel by kernel."""


class LossModule(nn.Module):
    """A batch in, the terms of the loss out."""

    def __init__(self, objective: Objective, models: Mapping[str, Model]):
        super().__init__()
        self.objective = objective
        self.models = nn.ModuleDict({name.replace(".", "/"): model for name, model in models.items()})
        self.names = tuple(models)
        self.lanes: CarriedState | None = None
        """Set by training where segments carry their state."""
        self.replayed = False
        """Set by training where the model is recorded: whatever it gave is gone when it is called again."""

    def forward(self, batch: Batch, rng: torch.Generator, counts: Mapping[str, float]) -> Loss:
        """Terms of which nothing counts are left out: who waits for their gradients would wait in vain."""
        if self.replayed:
            torch.compiler.cudagraph_mark_step_begin()
        models = dict(zip(self.names, self.models.values(), strict=True))
        if self.lanes is not None:
            assert batch.continuation is not None and batch.continuation.row is not None
            models["model"] = CarryingModel(self.model, self.lanes, batch.continuation.row)
        loss = self.objective.loss(models, batch, rng)  # type: ignore[arg-type]
        return {name: term for name, term in loss.items() if counts.get(name)}

    @property
    def model(self) -> Model:
        """The one that is trained."""
        return self.models["model"]  # type: ignore[return-value]

    @contextmanager
    def afresh(self) -> Iterator[CarriedState | None]:
        """Inside, other texts are read from their beginning."""
        own, self.lanes = self.lanes, self.lanes and self.lanes.empty()
        try:
            yield self.lanes
        finally:
            self.lanes = own


def build_models(recipe: Recipe, objective: Objective, device: torch.device) -> dict[str, Model]:
    """The model and its companions, fresh, sharing what the objective ties."""
    specs = {"model": recipe.model, **objective.companions(recipe.model)}
    models = {name: spec.build(device=device, seed=recipe.weights_seed) for name, spec in specs.items()}
    objective.tie(models)
    return models


def compile_whole(scored: LossModule, dynamic: bool | None) -> None:
    """One graph, or two where a source is read first: every graph costs the host some time at every call."""
    model, mode = scored.model, "reduce-overhead" if scored.replayed else None
    model.compile(dynamic=dynamic, mode=mode)
    model.encode = _compiled(model, type(model).encode, dynamic, mode)  # type: ignore[method-assign]


def compile_layers(scored: LossModule, dynamic: bool | None) -> None:
    """Block by block, where something has to happen between them."""
    for block in blocks(scored):
        block.forward = _compiled(block, type(block).forward, dynamic)  # type: ignore[method-assign]


def _compiled(
    module: nn.Module, method: Callable[..., Any], dynamic: bool | None, mode: str | None = None
) -> Callable[..., Any]:
    """A method of the module, so that a copy of the module has one of its own."""
    return MethodType(torch.compile(method, dynamic=dynamic, mode=mode), module)


def replays(scored: LossModule, world: World, dynamic: bool | None, step_flops: int) -> bool:
    """Whether an update is so small that its graphs are recorded once and asked for as a whole (CUDA graphs). Shapes
    must stay, and nothing that a call gives may outlive it, as the states of segments do."""
    alone = world.device.type == "cuda" and world.size == 1
    stays = not dynamic and not scored.objective.relays
    return alone and stays and scored.lanes is None and step_flops < SMALL_UPDATE_FLOPS


def compiles(train: TrainSpec, device: torch.device, budget: Budget, step_flops: int) -> bool:
    """What `train.compile` means here."""
    if train.compile != "auto":
        return train.compile
    long = (budget.steps or 0) * step_flops >= LONG_RUN_FLOPS
    return device.type == "cuda" or long
