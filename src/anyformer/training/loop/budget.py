"""The length of a run, its predicted time and memory, and the micro-batches that fit.

Budgets in tokens or FLOPs are converted to steps before the start; minutes use the clock. On a CPU the system kills a
process that needs too much memory without an error, so the estimate is checked first.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

import torch

from anyformer.core import ModelSpec, Work
from anyformer.core.costs import kept_bytes, total_cost
from anyformer.core.readable_numbers import counted
from anyformer.data.batching.batch import Batch
from anyformer.data.batching.row_plan import LoaderPosition
from anyformer.data.preparation.shards import Prepared
from anyformer.errors import ResourceError, at
from anyformer.ops.devices import available
from anyformer.training.distributed import ALONE, World, uses_fsdp
from anyformer.training.loop.feed import width_of
from anyformer.training.loop.loss_module import DTYPES, Precision
from anyformer.training.recipes.recipe import USUAL_STEPS, Recipe, TrainSpec

Status = Literal["applied", "non_finite", "overflow", "empty"]
"""Outcome of an update. non_finite: loss or gradient was not finite, so it was not applied; overflow: the same in fp16,
where the loss scale is the cause; empty: nothing in the batch counted."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One update."""

    number: int
    """Number of batches used so far; the first step is 1."""
    loss: float
    """Sum of the loss terms, each divided by its own count."""
    terms: Mapping[str, float] = field(default_factory=dict)
    lr: float
    gradient_norm: float
    """Norm of all gradients before clipping."""
    tokens: int
    """Tokens used so far, without padding."""
    epoch: int
    status: Status = "applied"
    wall_s: float
    """Seconds spent in the loop so far, earlier parts of an interrupted run included."""
    tokens_per_s: float
    """Tokens per second of this update alone."""
    peak_bytes: int | None = None
    """Peak memory so far, if the device reports it."""


Observer: TypeAlias = Callable[[Step], None]


@dataclass(frozen=True)
class Moments:
    """True for every n-th step and for the last one."""

    every: int
    finished: Callable[[], bool]
    """Whether the step that was just taken is the last one."""

    def __call__(self, step: Step) -> bool:
        return self.finished() or bool(self.every and step.number % self.every == 0)


OVERFITTING = 0.01
"""A validation loss above the lowest one by more than this fraction of it counts as over-fitting (`train.stop`)."""


@dataclass
class Progress:
    """Counters of a run; together with the seed they allow an exact resume."""

    step: int = 0
    """Number of batches used so far."""
    tokens: int = 0
    """Number of tokens used so far, without padding."""
    wall_s: float = 0.0
    """Seconds spent in the loop."""
    position: LoaderPosition = LoaderPosition()
    """Position of the loader after the last batch."""
    skipped: int = 0
    """Consecutive updates that were not applied because loss or gradient was not finite."""
    scale: float = 1.0
    """Loss scale of fp16."""
    calm: int = 0
    """Steps since the loss scale last changed."""
    micro_batch: int | None = None
    """Tokens of a micro-batch; None for the whole batch."""
    best: float | None = None
    """Lowest validation loss so far."""
    best_step: int | None = None
    """Step of the lowest validation loss."""
    worse: int = 0
    """Consecutive validation losses that were more than `OVERFITTING` above the lowest one."""

    def note_validation(self, loss: float) -> None:
        """Updates the lowest validation loss and the number of losses in a row that are well above it."""
        if math.isfinite(loss) and (self.best is None or loss < self.best):
            self.best, self.best_step = loss, self.step
        overfits = self.best is not None and not loss <= self.best + OVERFITTING * abs(self.best)  # true for NaN
        self.worse = self.worse + 1 if overfits else 0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"position": list(self.position)}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "Progress":
        return cls(**{**data, "position": LoaderPosition(*data["position"])})


@dataclass(frozen=True)
class Budget:
    """The budget of a run: a number of steps or a time in seconds."""

    steps: int | None
    seconds: float | None = None

    def spent(self, step: int, wall_s: float) -> bool:
        """True if the run ends after this step."""
        if self.steps is not None:
            return step >= self.steps
        return self.seconds is not None and wall_s >= self.seconds

    def total(self, step: int, wall_s: float) -> int:
        """The total number of steps for the schedule; estimated from the speed so far if the budget is a time."""
        if self.steps is not None:
            return self.steps
        assert self.seconds is not None
        return max(step + 1, round(step * self.seconds / wall_s)) if step and wall_s else USUAL_STEPS

    def share(self, step: int, wall_s: float) -> float:
        """The fraction of the budget that is used, from 0 to 1."""
        done = step / self.steps if self.steps is not None else wall_s / (self.seconds or math.inf)
        return min(1.0, done)


def budget_of(train: TrainSpec, step_flops: int) -> Budget:
    """The budget that the `train` section of a recipe sets."""
    if train.minutes is not None:
        return Budget(None, 60 * train.minutes)
    if train.tokens is not None:
        return Budget(-(-train.tokens // train.batch_tokens))
    if train.flops is not None:
        return Budget(max(1, int(train.flops // max(1, step_flops))))
    return Budget(train.steps or USUAL_STEPS)


def step_flops(model: ModelSpec, train: TrainSpec, context: int) -> int:
    """FLOPs of one update: forward and backward passes over a full batch."""
    sides = 2 if model.needs_source else 1
    rows = max(1, train.batch_tokens // (sides * context))
    with at("model"):
        total = total_cost(model, Work(batch=1, length=context))
    return rows * (total.flops_forward + total.flops_backward)


@dataclass(frozen=True)
class Rates:
    """What a kind of device does in a second, about."""

    flops: float
    """FLOPs of small models, forward and backward."""
    parameter_s: float
    """Seconds that the optimiser takes for a parameter."""
    overhead_s: float
    """Seconds of an update that do not depend on its size."""
    start_s: float
    """Seconds until the first update."""


RATES = {
    "cpu": Rates(flops=4e10, parameter_s=4e-9, overhead_s=5e-3, start_s=10),  # two cores of 2.5 GHz, measured
    "gpu": Rates(flops=1e14, parameter_s=2e-11, overhead_s=1.5e-2, start_s=20),  # one H200, from earlier benchmarks
}


@dataclass(frozen=True)
class PredictedCost:
    """The cost of a run, predicted from the cost of its model; nothing is timed."""

    params: int
    step_flops: int
    kept_bytes: int
    """Bytes of weights, gradients and optimizer moments."""
    activation_bytes: int
    """Bytes that the backward pass of one micro-batch needs."""

    @classmethod
    def of(
        cls,
        model: ModelSpec,
        train: TrainSpec,
        context: int,
        micro_batch: int | None = None,
        precision: Precision = "fp32",
    ) -> "PredictedCost":
        """The cost of training a model; `micro_batch`: tokens that are processed at once, if fewer than the batch."""
        rows = max(1, (micro_batch or train.batch_tokens) // (context * (2 if model.needs_source else 1)))
        kept_bytes, row = estimate(model, context, precision)
        params = total_cost(model, Work(batch=1, length=context)).params
        return cls(params, step_flops(model, train, context), kept_bytes, rows * row)

    @property
    def bytes(self) -> int:
        return self.kept_bytes + self.activation_bytes

    def seconds(self, steps: int, device: Literal["cpu", "gpu"]) -> float:
        """The time of a number of updates on a kind of device: steps (overhead + FLOPs / rate + parameters x time of an
        optimiser's update)."""
        rates = RATES[device]
        each = rates.overhead_s + self.step_flops / rates.flops + self.params * rates.parameter_s
        return rates.start_s + steps * each


OUT_OF_MEMORY = (torch.OutOfMemoryError, MemoryError, RuntimeError)
_CPU_WORDS = ("DefaultCPUAllocator", "can't allocate memory", "not enough memory")
_PROPOSAL = (
    'Less memory: a smaller train.micro_batch or data.context, train.recompute="blocks", a smaller model.dim or depth.'
)
PER_PARAMETER = 16
"""Bytes per parameter: weight, gradient and two moments of the optimiser, in fp32."""


def estimate(model: ModelSpec, context: int, precision: Precision = "fp32") -> tuple[int, int]:
    """Bytes for weights, gradients and the optimiser's state, and bytes of activations for each row of `context`
    tokens, computed from the model's cost."""
    one, two = Work(batch=1, length=context), Work(batch=2, length=context)
    card = total_cost(model, one)
    fixed, row = card.params * PER_PARAMETER, card.activation_bytes
    if precision != "fp32":
        first = kept_bytes(model, one, DTYPES[precision])
        row = kept_bytes(model, two, DTYPES[precision]) - first
        fixed += first - row  # copies of the weights in the lower precision
    return fixed, row


def micro_batch_tokens(recipe: Recipe, prepared: Prepared, world: World, precision: Precision) -> int | None:
    """Tokens of a micro-batch: as set in the recipe, or else the whole batch halved until it fits in memory."""
    context, sides = prepared.context, 2 if recipe.model.needs_source else 1
    setting, free = recipe.train.micro_batch, available(world.device)
    free = None if free is None else int(-world.maximum(-free))  # all ranks use the same size
    most = recipe.train.batch_tokens // world.size if setting == "auto" else setting
    fixed, row = estimate(recipe.model, context, precision)
    fixed = fixed // world.size if uses_fsdp(world, recipe.train.parallel) else fixed
    rows = max(1, most // (sides * context))
    if free is not None and setting == "auto":
        while rows > 1 and fixed + rows * row > free:
            rows //= 2
    if free is not None and fixed + rows * row > free:
        gib = 1 << 30
        raise ResourceError(
            f"out of memory before the start: {fixed / gib:.2f} GiB for weights, gradients and moments and "
            f"{rows * row / gib:.2f} GiB for the backward pass are needed, {free / gib:.2f} GiB are free. {_PROPOSAL}"
        )
    if setting != "auto":
        return setting
    tokens = rows * sides * context
    return None if tokens >= recipe.train.batch_tokens // world.size else tokens


def smaller_micro_batch(
    error: BaseException, batch: Batch, now: int | None, recipe: Recipe, world: World = ALONE
) -> int:
    """Half of the micro-batch that ran out of memory; raises ResourceError if it is fixed or cannot be halved."""
    about_memory = isinstance(error, torch.OutOfMemoryError) or any(word in str(error) for word in _CPU_WORDS)
    if isinstance(error, RuntimeError) and not about_memory:
        raise error
    width, height = width_of(batch), len(batch.tokens)
    rows = height if now is None else min(height, max(1, now // width))
    torch.cuda.empty_cache()
    if recipe.train.micro_batch != "auto" or rows == 1 or world.size > 1:  # a rank cannot retry alone
        why = ' Set train.micro_batch="auto", or to less.' if recipe.train.micro_batch != "auto" else ""
        why = f" Set train.micro_batch={max(1, rows // 2) * width}." if world.size > 1 else why
        raise ResourceError(
            f"out of memory with {counted(rows, 'rows')} of {width} tokens at once.{why} {_PROPOSAL}"
        ) from None
    return (rows // 2) * width
