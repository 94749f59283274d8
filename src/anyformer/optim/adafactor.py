"""Adafactor: Adam with a factored second moment (a row and a column), and steps relative to the size of the weights.

R <- b R + (1 - b) rowmean(g^2 + eps) ; C likewise by columns ; b = 1 - t^-0.8 ; u = g / sqrt(R C / mean(R))
w <- w - lr (decay w + max(floor, rms(w)) u / max(1, rms(u) / clip))          (arXiv 1804.04235)

The rate is relative: T5 takes lr = 0.01 under `inverse_square_root`, which is 1 / sqrt(max(step, 10^4)). torch's own
Adafactor caps the rate at 1 / sqrt(t) whatever the schedule, factors even small matrices, and synchronises with the
device three times per tensor. This implementation does not, and equals torch's and Hugging Face's where they agree.
"""

from dataclasses import dataclass
from math import sqrt
from typing import Annotated, Any

import torch
from torch import Tensor

from anyformer.core import Count, Positive, Range
from anyformer.ops.devices import at_least_float32
from anyformer.optim.optimizer import OptimizerSpec


@dataclass(frozen=True, kw_only=True)
class Adafactor(OptimizerSpec, kind="adafactor"):
    """Adam with a factored second moment and relative steps, which needs almost no optimiser state."""

    lr: Positive = 1e-2
    """Learning rate at its peak, relative to the size of the weights."""
    power: Annotated[float, Range(above=0.0, high=1.0)] = 0.8
    """Exponent of the decay: at step t, the decay of the mean squared gradient is 1 - t^-power."""
    clip: Positive = 1.0
    """Maximum root mean square of a tensor's update, before the learning rate."""
    floor: Positive = 1e-3
    """Minimum of the weights' root mean square, so that weights that start at zero can move."""
    eps: Positive = 1e-30
    """Added to squared gradients."""
    factored_from: Count = 128
    """Minimum number of rows and columns for factoring; smaller matrices have a full second moment."""

    @property
    def fan_in_power(self) -> float:
        return 0.5  # steps are relative to weights, whose size falls with the root of the fan-in

    def stepper(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return AdafactorStepper(groups, {name: getattr(self, name) for name in ("power", "clip", "floor", "eps")})

    def fresh(self, parameter: Tensor) -> dict[str, Tensor]:
        wide, shape = at_least_float32(parameter), parameter.shape
        step = torch.zeros((), dtype=torch.float32)  # on the host, where it is read
        if len(shape) < 2 or min(shape[-2:]) < self.factored_from:
            return {"step": step, "variance": torch.zeros_like(parameter, dtype=wide)}
        row, column = (*shape[:-1], 1), (*shape[:-2], 1, shape[-1])
        return {
            "step": step,
            "row_var": parameter.new_zeros(row, dtype=wide, requires_grad=False),
            "col_var": parameter.new_zeros(column, dtype=wide, requires_grad=False),
        }


class AdafactorStepper(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for tensor in group["params"]:
                if tensor.grad is not None:
                    self._step(group, tensor, self.state[tensor])

    def _step(self, group: dict[str, Any], tensor: Tensor, state: dict[str, Tensor]) -> None:
        state["step"] += 1
        weight = state["step"].item() ** -group["power"]
        grad = tensor.grad.to(at_least_float32(tensor))  # type: ignore[union-attr]
        move = grad * _inverse_root(grad.square() + group["eps"], state, weight)
        size = _rms(tensor.to(grad.dtype)).clamp(min=group["floor"])
        move *= group["lr"] * size / (_rms(move) / group["clip"]).clamp(min=1.0)
        tensor.mul_(1 - group["lr"] * group["weight_decay"])
        tensor.sub_(move)


def _inverse_root(square: Tensor, state: dict[str, Tensor], weight: float) -> Tensor:
    """1 / sqrt of the mean squared gradient, after updating the mean with `square` by `weight`."""
    if "variance" in state:
        return state["variance"].lerp_(square, weight).rsqrt()
    row = state["row_var"].lerp_(square.mean(-1, keepdim=True), weight)
    column = state["col_var"].lerp_(square.mean(-2, keepdim=True), weight)
    return (row / row.mean(-2, keepdim=True)).rsqrt() * column.rsqrt()


def _rms(tensor: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(tensor)
    return norm / sqrt(tensor.numel())
