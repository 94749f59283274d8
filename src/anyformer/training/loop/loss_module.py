"""An objective and its models as one module: the unit that is compiled, replicated (DDP) or sharded (FSDP)."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import update_wrapper
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import nn

from anyformer.core import Model, ModelSpec, Spec, initialise
from anyformer.data.batching.batch import Batch
from anyformer.errors import SpecError, at
from anyformer.objectives.objective import Loss, Objective
from anyformer.ops.compile_choice import SMALL_UPDATE_FLOPS, Setting
from anyformer.ops.devices import on_gpu
from anyformer.training.distributed import World, blocks
from anyformer.training.loop.truncated_bptt import CarriedState, CarryingModel
from anyformer.training.recipes.recipe import Recipe, TrainSpec
from anyformer.training.runs.checkpoint import run_recipe, trained_model


class LossModule(nn.Module):
    """Maps a prepared batch to the terms of its loss."""

    def __init__(self, objective: Objective, models: Mapping[str, Model]):
        super().__init__()
        self.objective = objective
        self.models = nn.ModuleDict({name.replace(".", "/"): model for name, model in models.items()})
        self.names = tuple(models)
        self.carried: CarriedState | None = None
        """Recurrent states carried from batch to batch, with train.segments = "carry"."""
        self.recorded = False
        """True if the model runs as recorded CUDA graphs, whose outputs are overwritten by the next call."""

    def forward(self, batch: Batch, rng: torch.Generator, counted: Collection[str]) -> Loss:
        """The terms of these names; of others, nothing counts in the whole batch."""
        if self.recorded:
            torch.compiler.cudagraph_mark_step_begin()
        models = dict(zip(self.names, self.models.values(), strict=True))
        if self.carried is not None:
            assert batch.continuation is not None and batch.continuation.row is not None
            models["model"] = CarryingModel(self.model, self.carried, batch.continuation.row)
        loss = self.objective.loss(models, batch, rng)  # type: ignore[arg-type]
        return {name: term for name, term in loss.items() if name in counted}

    @property
    def model(self) -> Model:
        """The model that is trained."""
        return self.models["model"]  # type: ignore[return-value]

    @contextmanager
    def with_empty_state(self) -> Iterator[CarriedState | None]:
        """Inside the context, carried states start empty; afterwards those of training are back."""
        training, self.carried = self.carried, self.carried and self.carried.empty()
        try:
            yield self.carried
        finally:
            self.carried = training


def build_models(recipe: Recipe, objective: Objective, device: torch.device) -> dict[str, Model]:
    """The model and its companions with fresh, tied weights, the models of other runs, which are not trained, and the
    projections between them."""
    models, specs = fresh_models(recipe, objective, device), dict[str, ModelSpec]()
    for name, folder in objective.pretrained.items():
        with at(f"objective.{name}"):
            theirs = run_recipe(Path(folder))
            objective.check_pretrained(name, theirs.model, recipe.model)
            models[name] = trained_model(Path(folder), theirs, device).requires_grad_(False)
            specs[name] = theirs.model
    with torch.device(device):
        projections = objective.projections(recipe.model, specs)
    for name, model in projections.items():
        initialise(model, recipe.model.scheme, recipe.weights_seed)
        models[name] = model
    return models


def fresh_models(recipe: Recipe, objective: Objective, device: torch.device) -> dict[str, Model]:
    """The model and its companions with fresh weights, tied as the objective requires."""
    specs = {"model": recipe.model, **objective.companions(recipe.model)}
    models = {name: spec.build(device=device, seed=recipe.weights_seed) for name, spec in specs.items()}
    objective.tie(models)
    return models


def compile_whole(loss_module: LossModule, dynamic: bool | None) -> None:
    """Compiles the model as one graph, and its encoder as another: every graph costs host time at every call."""
    model, mode = loss_module.model, "reduce-overhead" if loss_module.recorded else None
    model.compile(dynamic=dynamic, mode=mode)
    model.encode = _compiled(model, type(model).encode, dynamic, mode)  # type: ignore[method-assign]


def compile_layers(loss_module: LossModule, dynamic: bool | None) -> None:
    """Compiles layer by layer: layers of the same kind share one graph, and FSDP gathers weights between them.

    Only training is compiled: for validation the compiler would make another graph of each kind."""
    for block in blocks(loss_module):
        block.forward = MethodType(CompiledInTraining(type(block).forward, dynamic), block)  # type: ignore[method-assign]


class CompiledInTraining:
    """A method that runs compiled in training mode, and as it is otherwise."""

    def __init__(self, method: Callable[..., Any], dynamic: bool | None):
        update_wrapper(self, method)  # a bound method is pickled by its name
        self.plain, self.compiled = method, torch.compile(method, dynamic=dynamic)

    def __call__(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return (self.compiled if module.training else self.plain)(module, *args, **kwargs)


def _compiled(
    module: nn.Module, method: Callable[..., Any], dynamic: bool | None, mode: str | None = None
) -> Callable[..., Any]:
    """A compiled method bound to the module, so that a copy of the module compiles its own."""
    return MethodType(torch.compile(method, dynamic=dynamic, mode=mode), module)


def compile_setting(objective: Objective, train: TrainSpec) -> Setting:
    """`train.compile` as far as the objective allows it; SpecError if it must not compile or recompute layers."""
    if not objective.reads_taps:
        return train.compile
    reason = f"{objective.kind} compares values inside the layers"
    if train.compile not in ("auto", False):
        raise SpecError(f"train.compile={train.compile}: {reason}, which compiled layers do not give. Set it to auto.")
    if train.recompute != "none":
        raise SpecError(
            f"train.recompute={train.recompute}: {reason}, which recomputed ones do not give. Set it to none."
        )
    return False


def runs_as_graphs(loss_module: LossModule, world: World, step_flops: int) -> bool:
    """True if updates are small enough to gain from CUDA graphs, and nothing rules them out: one process, rows as the
    data gave them, and no output that outlives its call, as carried states do."""
    one_gpu = on_gpu(world.device) and world.size == 1
    as_given = not loss_module.objective.relays and loss_module.carried is None
    return one_gpu and as_given and step_flops < SMALL_UPDATE_FLOPS


def takes_more_rows(objective: Objective, model: Spec) -> bool:
    """True if rows of weight 0 change nothing: neither the objective nor a part compares the rows of a batch."""
    return objective.scored_by_weight and not any("batch" in spec.limits for _, spec in model.walk())
