"""An objective and its models as one module, and how updates execute it: in which precision, and whether eagerly,
compiled or as CUDA graphs. It is the unit that is compiled, replicated (DDP) or sharded (FSDP).

Compiling or capturing takes time before it saves any; the execution with the lowest predicted time is chosen:

    seconds = seconds to compile or capture + steps x seconds of a step

The constants were measured on one NVIDIA H200 with torch 2.11 (docs/experiments.md, "When compiling pays"). They are
rough: where the two sides are close, the choice hardly matters. Neither a timing nor a cache enters, so the same work
is always executed in the same way.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import update_wrapper
from pathlib import Path
from types import MethodType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from anyformer.core import Model, ModelSpec, Spec, initialise
from anyformer.data.batching.batch import Batch
from anyformer.errors import SpecError, at
from anyformer.objectives.objective import Loss, Objective
from anyformer.ops.devices import has_bf16, on_gpu
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


Precision = Literal["fp32", "bf16", "fp16"]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
GROW_AFTER = 2000


REFUSED = {
    ("fp16", "cpu"): "fp16 is for GPUs. Use train.precision=fp32 on a CPU.",
    ("bf16", "cuda"): "bf16: this GPU does not support bfloat16. Use train.precision=fp16.",
    ("bf16", "cpu"): "bf16: this CPU has no bf16 instructions (AVX512-BF16, AMX or ARM's BF16), so it would be slower "
    "than fp32. Use train.precision=fp32.",
}
"""Precision and device type -> why it is refused; bf16 only where the hardware lacks it."""


def resolve_precision(setting: str, device: torch.device) -> Precision:
    """Resolves `train.precision` for a device; refuses a precision that the device could only emulate."""
    if setting == "auto":
        return "bf16" if on_gpu(device) and has_bf16(device) else "fp32"
    refusal = REFUSED.get((setting, device.type))
    if refusal and not (setting == "bf16" and has_bf16(device)):
        raise SpecError(f"train.precision={refusal}")
    return setting  # type: ignore[return-value]


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Autocast to a precision; operations that need fp32 stay in fp32."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, DTYPES[precision])


@dataclass
class LossScale:
    """Dynamic loss scale, which keeps small fp16 gradients from underflow: halved after an overflow, doubled after
    `GROW_AFTER` steps without one."""

    value: float = 1.0
    calm: int = 0

    @classmethod
    def of(cls, precision: Precision) -> "LossScale":
        return cls(65536.0 if precision == "fp16" else 1.0)

    def undo(self, gradients: list[Tensor]) -> None:
        """Divides gradients by the scale, in place."""
        if self.value != 1.0 and gradients:
            torch._foreach_mul_(gradients, 1.0 / self.value)

    def settle(self, overflow: bool) -> None:
        """Updates the scale after a step of an fp16 run."""
        self.calm = 0 if overflow else self.calm + 1
        if overflow:
            self.value /= 2
        elif self.calm == GROW_AFTER:
            self.value, self.calm = self.value * 2, 0


Execution = Literal["eager", "captured", "layers", "compiled", "recorded"]
"""How updates run: by plain calls; by plain calls that are captured as CUDA graphs; with compiled layers, and captured
where that is possible; compiled as a whole; or compiled as a whole and recorded as CUDA graphs."""
Setting = bool | Literal["auto", "layers"]
"""The values of `train.compile`."""


EAGER_HOST_S = 7.5e-3, 2.5e-3
"""Seconds in which the host launches an eager update: fixed, and for each layer."""
COMPILED_HOST_S = 5e-3, 1.5e-3
"""The same for a compiled update that is not recorded."""
RECORDED_HOST_S = 2e-3, 0.0
"""The same for a recorded update."""
CAPTURED_HOST_S = 3e-3, 0.0
"""The same for a captured update."""
CAPTURE_S = 0.05, 0.01
"""Seconds to capture an update for one shape of batches: fixed, and for each layer. An estimate, not measured alone."""
SHAPES = 40
"""Shapes that batches have if they do not all have the same."""
EAGER_FLOPS_PER_S, COMPILED_FLOPS_PER_S = 3e14, 4.5e14
"""Speed of updates that are large enough to be bound by the device."""
COMPILE_S = 10.0, 3.5
"""Seconds to compile training and validation for one shape of batches: fixed, and for each layer."""
MANY_SHAPES = 4
"""How many times as long it takes to compile for batches of all shapes."""
SMALL_UPDATE_FLOPS = 2e13
"""On a GPU, below this many FLOPs per update kernel launches cost more than the kernels: CUDA graphs are used."""
CPU_FLOPS = 3e15
"""On a CPU, a run above this many FLOPs takes hours, and compiling for minutes pays off."""


@dataclass(frozen=True, kw_only=True)
class Updates:
    """The updates of a training run, as far as they are known before its start."""

    steps: int | None
    """Number of updates; None if the budget is a time."""
    seconds: float | None = None
    """The budget in seconds, if it is a time."""
    flops: int
    """FLOPs of one update."""
    layers: int
    """Layers that an update runs through, in all stacks."""
    one_shape: bool
    """True if all batches have the same shape."""
    recordable: bool
    """True if compiled updates can be recorded as CUDA graphs."""
    capturable: bool = False
    """True if eager updates can be captured as CUDA graphs."""


def execution_of(setting: Setting, updates: Updates, *, gpu: bool) -> Execution:
    """How a run executes its updates: what `train.compile` means for it."""
    compiled: Execution = "recorded" if updates.recordable else "compiled"
    if setting == "layers":
        return "layers"
    if setting != "auto":
        return compiled if setting else "eager"
    if not gpu:
        return compiled if (updates.steps or 0) * updates.flops >= CPU_FLOPS else "eager"
    ways: list[Execution] = ["eager", "captured", compiled] if updates.capturable else ["eager", compiled]
    return min(ways, key=lambda way: _gpu_seconds(way, updates))


def _gpu_seconds(way: Execution, updates: Updates) -> float:
    """The predicted seconds of a run on a GPU."""
    eager_s = _step_seconds("eager", updates)
    steps = (updates.seconds or 0.0) / eager_s if updates.steps is None else updates.steps
    once_s = {
        "eager": 0.0,
        "captured": _linear(CAPTURE_S, updates.layers) * (1 if updates.one_shape else SHAPES),
    }.get(way, _linear(COMPILE_S, updates.layers) * (1 if updates.one_shape else MANY_SHAPES))
    return once_s + steps * _step_seconds(way, updates)


def _step_seconds(way: Execution, updates: Updates) -> float:
    """Seconds of an update: those of the host or those of the GPU, whichever takes longer."""
    host_s = {
        "eager": EAGER_HOST_S, "captured": CAPTURED_HOST_S, "compiled": COMPILED_HOST_S, "recorded": RECORDED_HOST_S
    }[way]  # fmt: skip
    speed = EAGER_FLOPS_PER_S if way in ("eager", "captured") else COMPILED_FLOPS_PER_S
    return max(_linear(host_s, updates.layers), updates.flops / speed)


def _linear(seconds: tuple[float, float], layers: int) -> float:
    return seconds[0] + seconds[1] * layers


def compile_whole(loss_module: LossModule, dynamic: bool | None) -> None:
    """Compiles the model as one graph, and its encoder as another: every graph costs host time at every call."""
    model, mode = loss_module.model, "reduce-overhead" if loss_module.recorded else None
    model.compile(dynamic=dynamic, mode=mode)
    # bound to this model, so that a copy of it compiles its own
    model.encode = MethodType(torch.compile(type(model).encode, dynamic=dynamic, mode=mode), model)  # type: ignore[method-assign]


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
