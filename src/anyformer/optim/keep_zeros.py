"""An optimiser that keeps pruned weights at zero: every weight of a matrix that is exactly 0 before the first step.

w <- w * m, g <- g * m  with m = (w_0 != 0)
The mask follows from the weights, so a checkpoint needs nothing more: a resumed run finds the same zeros.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from anyformer.errors import Problem, SpecError
from anyformer.optim.adamw import AdamW
from anyformer.optim.optimizer import LearnedTensor, Optimizer, OptimizerSpec


@dataclass(frozen=True, kw_only=True)
class KeepZeros(OptimizerSpec, kind="keep_zeros"):
    """Another optimiser, whose steps leave every matrix weight that is exactly zero at zero: for pruned models."""

    optimizer: OptimizerSpec = AdamW()
    """The optimiser; its learning rate is replaced by `lr`, everything else is set here."""

    def check(self) -> None:
        moved = [name for name in ("weight_decay", "rates", "transfer") if getattr(self, name)]
        if moved:
            text = f"belongs to the inner optimiser. Set optimizer.optimizer.{moved[0]}."
            raise SpecError(problems=[Problem(moved[0], text)])

    def build(self, parameters: Sequence[LearnedTensor]) -> Optimizer:
        optimizer = replace(self.optimizer, lr=self.lr).build(parameters)
        masks = ZeroMasks([parameter.tensor for parameter in parameters if parameter.treatment.decay])
        for stepper in optimizer.steppers:
            stepper.register_step_pre_hook(masks.before)
            stepper.register_step_post_hook(masks.after)
        return optimizer

    def stepper(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return self.optimizer.stepper(groups)

    def fresh(self, parameter: Tensor) -> dict[str, Tensor]:
        return self.optimizer.fresh(parameter)


def keeping_zeros(optimizer: OptimizerSpec) -> KeepZeros:
    """The same optimiser, with steps that leave zeros as they are."""
    return optimizer if isinstance(optimizer, KeepZeros) else KeepZeros(lr=optimizer.lr, optimizer=optimizer)


class ZeroMasks:
    """Masks of the weights that are not zero, made at the first step: by then a checkpoint is loaded."""

    def __init__(self, tensors: Sequence[Tensor]):
        self.tensors = tensors
        self.masks: list[tuple[Tensor, Tensor]] | None = None

    @torch.no_grad()
    def before(self, *_: Any) -> None:
        """Removes the gradients of weights that are zero, so that they do not enter the moments of others."""
        if self.masks is None:
            self.masks = [(tensor, tensor != 0) for tensor in self.tensors if not tensor.all()]
        for tensor, mask in self.masks:
            if tensor.grad is not None:
                tensor.grad.mul_(mask)

    @torch.no_grad()
    def after(self, *_: Any) -> None:
        """Sets these weights to zero again: some optimisers change a weight without a gradient."""
        for tensor, mask in self.masks or ():
            tensor.mul_(mask)
