"""The learned tensors of models, and a table from their role to how an optimiser treats them."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from anyformer.core import Module, Role
from anyformer.core.module import with_residuals
from anyformer.errors import Problem, SpecError


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


def learned(models: Mapping[str, nn.Module]) -> list[LearnedTensor]:
    """All trainable parameters, each once, with its first name: `model.stack.layers.0...`."""
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
                tensors[tensor] = LearnedTensor(name, tensor, rows[0][0], rows, residuals)
            else:
                text = "is trainable but has no role. Create it with `param(shape, role)` or `Linear`."
                problems.append(Problem(name, text))
    if problems:
        raise SpecError(problems=problems)
    return list(tensors.values())


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
    return next(iter(factors.values()))
