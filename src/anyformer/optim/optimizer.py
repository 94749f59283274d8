"""The base of every optimiser: a spec that builds it, and the one shape in which a trainer sees them all.

What moves the weights are torch's optimisers, or a rule of ours written as one. `Optimizer` sets their learning rate
for each step and names their state, so that it can be stored beside the weights and read without us.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from torch import Tensor

from anyformer.core import Positive, Range, Spec
from anyformer.core.fields import did_you_mean
from anyformer.errors import Problem, SpecError
from anyformer.optim.groups import TREATMENTS, LearnedTensor, grouped
from anyformer.optim.loading import copy_into

Decay = Annotated[float, Range(low=0.0)]


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec(Spec):
    """How gradients move the weights."""

    lr: Positive = 1e-3
    """Learning rate at its peak; the schedule gives the share of it that each step takes."""
    weight_decay: Decay = 0.0
    """Pull of matrices to zero in each step, as a share of the learning rate; vectors and tables feel none."""
    rates: dict[str, Positive] = field(default_factory=dict)
    """Role -> factor on the learning rate of what has it: {embed = 0.1}."""

    def check(self) -> None:
        unknown = [role for role in self.rates if role not in TREATMENTS]
        if unknown:
            raise SpecError(
                problems=[
                    Problem(f"rates.{role}", f"no such role.{did_you_mean(role, TREATMENTS)}") for role in unknown
                ]
            )

    def build(self, parameters: Sequence[LearnedTensor]) -> "Optimizer":
        """The optimiser of these parameters, with all its state, before the first step."""
        if not parameters:
            raise SpecError("nothing learns: every parameter is frozen.")
        stepper = self.stepper(grouped(parameters, self.lr, self.weight_decay, self.rates))
        for parameter in parameters:
            stepper.state[parameter.tensor] = self.fresh(parameter.tensor)
        return Optimizer([stepper], {parameter.name: stepper.state[parameter.tensor] for parameter in parameters})

    def stepper(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """What moves these groups of parameters by their gradients."""
        raise NotImplementedError

    def fresh(self, parameter: Tensor) -> dict[str, Tensor]:
        """The state of one parameter before the first step, as the stepper names it."""
        raise NotImplementedError


class Optimizer:
    """Moves weights by their gradients; its state is a flat table of tensors, `PARAMETER/exp_avg` and the like."""

    def __init__(self, steppers: Sequence[torch.optim.Optimizer], states: Mapping[str, dict[str, Any]]):
        self.steppers, self.states = steppers, states

    def step(self, scale: float, unless: Tensor | None = None) -> None:
        """One update by the gradients that are there; `scale` is the schedule's share of the learning rate.

        `unless`: a number on the device; if it is 1 and not 0, nothing changes. Steppers that can look at it there do,
        as they do for a loss scaler of torch; for all others the host waits for it.
        """
        for stepper in self.steppers:
            for group in stepper.param_groups:
                group["lr"] = group["peak"] * scale
            looks = unless is not None and _looks(stepper, unless)
            if unless is not None and not looks and unless.item():
                continue
            stepper.found_inf = unless if looks else None  # type: ignore[attr-defined]
            stepper.step()

    def zero_grad(self) -> None:
        """Lets go of all gradients; torch's own way takes longer, at a time when a device waits for the host."""
        for stepper in self.steppers:
            for group in stepper.param_groups:
                for tensor in group["params"]:
                    tensor.grad = None

    def state_dict(self) -> dict[str, Tensor]:
        """The state itself, not a copy: the next step changes it."""
        return {f"{name}/{key}": value for name, state in self.states.items() for key, value in state.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Takes over a stored state, whole or not at all."""
        copy_into(self.state_dict(), state, "the optimiser's state")


def _looks(stepper: torch.optim.Optimizer, unless: Tensor) -> bool:
    """Its kernels do nothing where `found_inf` is 1: fused ones on a CPU or with CUDA, but not with Metal."""
    return unless.device.type in ("cpu", "cuda") and all(group.get("fused") for group in stepper.param_groups)
