"""The bases of optimisers and of learning-rate schedules: specs that build them, and their interface for the trainer.

A table gives the treatment of a tensor by its role; `RateTransfer` is the base of every rule by which learning rates
transfer from small models to large ones.

The update rules are torch optimisers, from torch or written here. `Optimizer` sets their learning rate at each step and
names their state by parameter, so that it can be stored beside the weights and read without this library.

A schedule is a pure function from the step to a factor on the peak learning rate. Steps count from 0, the first update.
A schedule has no state, so a resumed run needs none.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from anyformer.core import Module, Positive, Range, Role, Spec
from anyformer.core.fields import did_you_mean
from anyformer.core.module import with_residuals
from anyformer.errors import CheckpointError, Problem, SpecError
from anyformer.ops.devices import is_sharded, on_gpu, shard_like


class Treatment(NamedTuple):
    """How an optimiser treats the tensors of a role."""

    decay: bool
    """True if weight decay applies: to weight matrices, not to embeddings, biases and gains."""
    matrix: bool
    """True for hidden weight matrices, whose updates Muon orthogonalises."""


_HIDDEN: tuple[Role, ...] = ("in", "gate", "query", "key", "value", "out")
_OTHER: tuple[Role, ...] = ("embed", "position", "gain", "bias", "scalar")
TREATMENTS: Mapping[Role, Treatment] = {
    **dict.fromkeys(_HIDDEN, Treatment(decay=True, matrix=True)),
    "head": Treatment(decay=True, matrix=False),
    **dict.fromkeys(_OTHER, Treatment(decay=False, matrix=False)),
}


class LearnedTensor(NamedTuple):
    """A trainable parameter with its name and role."""

    name: str
    tensor: nn.Parameter
    role: Role
    rows: tuple[tuple[Role, int], ...] = ()
    """Role and number of rows of each matrix, if several matrices are stacked in one tensor."""
    residuals: int = 1
    """Residual branches of its stack; 1 outside a stack."""
    rate: float = 1.0
    """Factor on its learning rate, such as that of its layer."""

    @property
    def treatment(self) -> Treatment:
        return TREATMENTS[self.role]

    @property
    def fan_in(self) -> int:
        """Number of inputs of one output of a matrix."""
        return math.prod(self.tensor.shape[1:])

    @property
    def roles(self) -> tuple[Role, ...]:
        return tuple(role for role, _ in self.rows) or (self.role,)

    def matrices(self, tensor: Tensor) -> Sequence[Tensor]:
        """Views of the matrices that are stacked in a tensor of this parameter's shape."""
        return tensor.split([rows for _, rows in self.rows]) if len(self.rows) > 1 else (tensor,)


def learned(models: Mapping[str, nn.Module], rates: Mapping[str, float] = MappingProxyType({})) -> list[LearnedTensor]:
    """All trainable parameters, each once, with its first name: `model.stack.layers.0...`. `rates`: name ->
    factor on the learning rate."""
    roles = {
        f"{path}.{name}": (rows, residuals)
        for prefix, model in models.items()
        for path, module, residuals in with_residuals(model, prefix)
        if isinstance(module, Module)
        for name, rows in module.roles.items()
    }
    tensors: dict[nn.Parameter, LearnedTensor] = {}
    problems: list[Problem] = []
    for prefix, model in models.items():
        for name, tensor in model.named_parameters(prefix):
            if tensor in tensors or not tensor.requires_grad:
                continue
            if name in roles:
                rows, residuals = roles[name]
                tensors[tensor] = LearnedTensor(name, tensor, rows[0][0], rows, residuals, rates.get(name, 1.0))
            else:
                text = "is trainable but has no role. Create it with `param(shape, role)` or `Linear`."
                problems.append(Problem(name, text))
    if problems:
        raise SpecError(problems=problems)
    return list(tensors.values())


@dataclass(frozen=True, kw_only=True)
class RateTransfer(Spec):
    """How the learning rate of a tensor follows from its shape and its role."""

    def factor(self, tensor: LearnedTensor, power: float) -> float:
        """The factor on the learning rate of a tensor.

        power: how fast the effect of an update grows with the fan-in of a matrix, which depends on the optimiser
        (`OptimizerSpec.fan_in_power`).
        """
        raise NotImplementedError


def grouped(
    parameters: Iterable[LearnedTensor],
    lr: float,
    decay: float,
    rates: Mapping[str, float],
    transfer: Callable[[LearnedTensor], float] = lambda parameter: 1.0,
) -> list[dict[str, Any]]:
    """Parameter groups for torch optimisers; `peak` is the learning rate before the schedule's factor.

    transfer: another factor on the rate, by the shape of a parameter. Weight decay, which optimisers multiply by the
    rate, does not follow it: a wide model decays as fast as a narrow one.
    """
    groups: dict[tuple[bool, float, float], dict[str, Any]] = {}
    for parameter in parameters:
        decays, rate, scale = parameter.treatment.decay, _rate(parameter, rates), transfer(parameter)
        group = groups.setdefault((decays, rate, scale), {"learned": [], "params": []})
        peak = lr * rate * scale
        group |= {"lr": peak, "peak": peak, "weight_decay": decay / scale if decays else 0.0}
        group["learned"].append(parameter)
        group["params"].append(parameter.tensor)
    return list(groups.values())


def _rate(parameter: LearnedTensor, rates: Mapping[str, float]) -> float:
    factors = {role: rates.get(role, 1.0) for role in parameter.roles}
    if len(set(factors.values())) > 1:
        listed = ", ".join(f"{role} {rate:g}" for role, rate in factors.items())
        text = f"{parameter.name} holds several roles in one tensor, which has one learning rate; rates: {listed}."
        raise SpecError(problems=[Problem("rates", f"{text} Set the same rate for all of them.")])
    return next(iter(factors.values())) * parameter.rate


@torch.no_grad()
def clip(parameters: Iterable[Tensor], max_norm: float | None) -> Tensor:
    """Scales all gradients together, in place, so that their joint norm is at most a limit; without a limit they stay.
    Returns the norm before clipping, on the device without a synchronisation.

    g <- g min(1, max_norm / (|g| + 1e-6))          (arXiv 1211.5063)
    """
    tensors = [parameter for parameter in parameters if parameter.grad is not None]
    norm = get_total_norm([tensor.grad for tensor in tensors if tensor.grad is not None])
    norm = norm.full_tensor() if is_sharded(norm) else norm  # each rank has the norm of its shard only
    if max_norm is not None:
        clip_grads_with_norm_(tensors, max_norm, norm)
    return norm


_LISTED = 10


def check_same(mine: Mapping[str, Tensor], stored: Mapping[str, Tensor], what: str) -> None:
    """Raises CheckpointError with the names that are missing, unexpected or of another shape."""
    wrong = [f"{name} is missing" for name in mine if name not in stored]
    wrong += [f"{name} is unexpected" for name in stored if name not in mine]
    shapes = ((name, tuple(mine[name].shape), tuple(stored[name].shape)) for name in mine if name in stored)
    wrong += [f"{name} has shape {theirs}, not {ours}" for name, ours, theirs in shapes if ours != theirs]
    if wrong:
        more = [f"... and {len(wrong) - _LISTED} more"] if len(wrong) > _LISTED else []
        raise CheckpointError("\n".join([f"{what} does not fit:", *wrong[:_LISTED], *more]))


@torch.no_grad()
def copy_into(mine: Mapping[str, Tensor], stored: Mapping[str, Tensor], what: str) -> None:
    """Overwrites tensors in place with stored ones of the same names."""
    check_same(mine, stored, what)
    for name, tensor in mine.items():
        tensor.copy_(shard_like(stored[name], tensor))


Decay = Annotated[float, Range(low=0.0)]


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec(Spec):
    """Base of all optimisers."""

    lr: Positive = 1e-3
    """Peak learning rate; the schedule multiplies it by a factor at each step."""
    weight_decay: Decay = 0.0
    """Weight decay of matrices, multiplied by the learning rate; vectors and embeddings have none."""
    rates: dict[str, Positive] = field(default_factory=dict)
    """Role -> factor on the learning rate of its parameters: {embed = 0.1}."""
    transfer: RateTransfer | None = None
    """How learning rates follow from the shapes of tensors, so that those of a small model fit a large one; none: one
    rate for all shapes."""

    @property
    def fan_in_power(self) -> float | None:
        """How fast the effect of an update grows with the fan-in of a matrix; None if rates do not transfer."""
        return None

    def check(self) -> None:
        if self.transfer is not None and self.fan_in_power is None:
            text = f"no rule is known for {self.kind}. Use adamw, adafactor, lion or muon."
            raise SpecError(problems=[Problem("transfer", text)])
        if unknown := [role for role in self.rates if role not in TREATMENTS]:
            hints = {role: f"no such role.{did_you_mean(role, TREATMENTS)}" for role in unknown}
            raise SpecError(problems=[Problem(f"rates.{role}", hint) for role, hint in hints.items()])

    def build(self, parameters: Sequence[LearnedTensor]) -> "Optimizer":
        """The optimiser of these parameters, with its initial state."""
        if not parameters:
            raise SpecError("no parameter is trainable: all are frozen.")
        stepper = self.stepper(grouped(parameters, self.lr, self.weight_decay, self.rates, self._shape_factor))
        for parameter in parameters:
            stepper.state[parameter.tensor] = self.fresh(parameter.tensor)
        return Optimizer([stepper], {parameter.name: stepper.state[parameter.tensor] for parameter in parameters})

    def _shape_factor(self, parameter: LearnedTensor) -> float:
        return 1.0 if self.transfer is None else self.transfer.factor(parameter, self.fan_in_power or 0.0)

    def stepper(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """The torch optimiser of these parameter groups."""
        raise NotImplementedError

    def fresh(self, parameter: Tensor) -> dict[str, Tensor]:
        """The initial state of one parameter, with the keys of the torch optimiser."""
        raise NotImplementedError


class Optimizer:
    """Updates weights; its state is a flat dict of tensors with keys such as `PARAMETER/exp_avg`."""

    def __init__(self, steppers: Sequence[torch.optim.Optimizer], states: Mapping[str, dict[str, Any]]):
        self.steppers, self.states = steppers, states

    def step(self, scale: float | Tensor, unless: Tensor | None = None) -> None:
        """One update with the current gradients; `scale` is the schedule's factor on the learning rate.

        `unless`: a scalar on the device; the update is skipped if it is 1. Muon and the fused optimisers of torch check
        it there (`found_inf`, as with torch's GradScaler); for all others the host synchronises and checks it.
        """
        for stepper in self.steppers:
            on_device, factor = unless is not None and _skips_on_device(stepper, unless.device), scale
            if unless is not None and not on_device and unless.item():
                continue
            if on_device and unless is not None and on_gpu(unless.device) and not isinstance(scale, Tensor):
                # A CUDA graph reads the rate from the device; eager updates read it there too, so that both are equal.
                factor = torch.full_like(unless, scale)
            for group in stepper.param_groups:
                group["lr"] = group["peak"] * factor
            stepper.found_inf = unless if on_device else None  # type: ignore[attr-defined]
            stepper.step()

    def runs_on(self, device: torch.device) -> bool:
        """True if an update never makes the host wait for the device, so that it can be captured as a CUDA graph."""
        return all(_skips_on_device(stepper, device) for stepper in self.steppers)

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Inside the context, torch's optimisers allow that a step is captured as a CUDA graph."""
        groups = [group for stepper in self.steppers for group in stepper.param_groups if "capturable" in group]
        try:
            for group in groups:
                group["capturable"] = True
            yield
        finally:
            for group in groups:
                group["capturable"] = False

    def zero_grad(self) -> None:
        """Sets all gradients to None. torch's own method takes longer on the host while the device is idle."""
        for stepper in self.steppers:
            for group in stepper.param_groups:
                for tensor in group["params"]:
                    tensor.grad = None

    def state_dict(self) -> dict[str, Tensor]:
        """The live state, not a copy: the next step changes it."""
        return {f"{name}/{key}": value for name, state in self.states.items() for key, value in state.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Loads a stored state; raises CheckpointError and changes nothing if names or shapes differ."""
        copy_into(self.state_dict(), state, "the optimiser's state")


def _skips_on_device(stepper: torch.optim.Optimizer, device: torch.device) -> bool:
    """True if the stepper itself skips the update when `found_inf` is 1."""
    if all(group.get("fused") for group in stepper.param_groups):
        return device.type in ("cpu", "cuda")  # the fused kernels of MPS do not
    return device.type == "cuda" and getattr(stepper, "skips_on_device", False)


Span = Annotated[float, Range(low=0.0)]
"""A duration: a number of steps if 1 or more, a fraction of the run if below 1."""
FIRST = 0.5
"""Step used for the first update during warm-up instead of 0, at which the rate would be 0."""


@dataclass(frozen=True, kw_only=True)
class ScheduleSpec(Spec):
    """How the learning rate changes over a run."""

    def check(self) -> None:
        for option in fields(self):
            span = getattr(self, option.name)
            if option.type == Span and span >= 1 and span != int(span):
                text = f"must be a whole number of steps, or a fraction of the run below 1, got {span!r}."
                raise SpecError(problems=[Problem(option.name, text)])

    def factor(self, step: int, total: int) -> float:
        """The factor on the peak rate, 0 to 1, of update `step` out of `total`; the first step is 0."""
        raise NotImplementedError


def span_steps(span: float, total: int) -> int:
    """A span as a number of steps, in a run of `total` steps."""
    return round(span if span >= 1 else span * total)


def ramp(step: int, warmup: int) -> float:
    """Linear warm-up: step / warmup, then 1 from step `warmup` on. Step 0 gets half the factor of step 1: at a rate
    of 0 the first update would change nothing."""
    return max(step, FIRST) / warmup if step < warmup else 1.0


def progress(step: int, start: int, end: int) -> float:
    """The fraction of the way from `start` to `end` at a step, clamped to 0 to 1; 1 after an empty interval begins."""
    return min(1.0, max(0.0, (step - start) / max(1, end - start)))
