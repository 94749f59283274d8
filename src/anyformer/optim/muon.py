"""Muon: the momentum of a matrix, with all its singular values pushed to about 1.

m <- momentum m + (1 - momentum) g ; u = (1 - momentum) g + momentum m ; X = u / |u|
five times X <- a X + b (X X^T) X + c (X X^T)^2 X ; w <- w - lr (decay w + s X)
s = 0.2 sqrt(max(rows, columns)), as large as a step of AdamW (arXiv 2502.16982), or sqrt(max(1, rows / columns)), as
first proposed (https://kellerjordan.github.io/posts/muon). For hidden matrices; tables, heads, gains and biases go to
another optimiser. Matrices of one shape, lying or standing, are stacked and turned together: few large products
instead of many small ones. Those that lie in one tensor (queries, keys, values) are turned one by one.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributed.tensor import DTensor

from anyformer.core import Chance, Count
from anyformer.errors import Problem, SpecError
from anyformer.optim.adamw import AdamW
from anyformer.optim.groups import TREATMENTS, LearnedTensor
from anyformer.optim.optimizer import Decay, Optimizer, OptimizerSpec

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the polynomial: steepest at zero among those that stay around 1."""
_EPS = 1e-7
_STACKED = {"cpu": 1 << 18}
"""Numbers stacked at a time: few on a CPU, where only small matrices gain,"""
_STACKED_ELSEWHERE = 1 << 27
"""or enough to keep a GPU busy, without a second copy of a large model."""


@dataclass(frozen=True, kw_only=True)
class Muon(OptimizerSpec, kind="muon"):
    """Orthogonalised momentum for hidden matrices, AdamW for the rest."""

    weight_decay: Decay = 0.1
    """Pull of matrices to zero in each step, as a share of the learning rate."""
    momentum: Chance = 0.95
    """How much of the mean gradient a step keeps."""
    nesterov: bool = True
    """Looks ahead: mixes the gradient once more into the mean."""
    iterations: Count = 5
    """Newton-Schulz iterations."""
    size: Literal["adamw", "original"] = "adamw"
    """Of a step: as large as one of AdamW, whose learning rates then fit, or as first proposed."""
    rest: OptimizerSpec = AdamW()
    """What moves all that is no hidden matrix, with a learning rate of its own."""

    def check(self) -> None:
        super().check()
        others = [role for role in self.rates if not TREATMENTS[role].matrix]  # type: ignore[index]
        if others:
            text = "is moved by the rest; say rest.rates."
            raise SpecError(problems=[Problem(f"rates.{role}", f"{role} {text}{role}.") for role in others])

    def build(self, parameters: Sequence[LearnedTensor]) -> Optimizer:
        matrices = [one for one in parameters if _is_matrix(one)]
        if any(isinstance(one.tensor, DTensor) for one in matrices):
            raise SpecError(
                "muon turns whole matrices, and these are sharded. Use adamw, adafactor, lion or sgd, or DDP."
            )
        others = [one for one in parameters if not _is_matrix(one)]
        own = [super().build(matrices)] if matrices else []
        built = own + ([self.rest.build(others)] if others or not own else [])
        states = {name: state for one in built for name, state in one.states.items()}
        return Optimizer([stepper for one in built for stepper in one.steppers], states)

    def stepper(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        names = ("momentum", "nesterov", "iterations", "size")
        return MuonStepper(groups, {name: getattr(self, name) for name in names} | {"precision": None})

    def fresh(self, parameter: Tensor) -> dict[str, Tensor]:
        return {"momentum_buffer": torch.zeros_like(parameter)}


class Turn(NamedTuple):
    """A matrix and the direction that it is to move in, before it is orthogonalised: views."""

    weight: Tensor
    direction: Tensor

    @property
    def standing(self) -> bool:
        return self.direction.shape[0] > self.direction.shape[1]

    def lying(self, matrix: Tensor) -> Tensor:
        """With its longer side along the rows, or back again."""
        return matrix.mT if self.standing else matrix


class MuonStepper(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            moving = [one for one in group["learned"] if one.tensor.grad is not None]
            if moving:
                self._step(group, moving)

    def _step(self, group: dict[str, Any], moving: Sequence[LearnedTensor]) -> None:
        tensors: list[Tensor] = [one.tensor for one in moving]
        grads = [tensor.grad for tensor in tensors if tensor.grad is not None]
        means, momentum = [self.state[tensor]["momentum_buffer"] for tensor in tensors], group["momentum"]
        torch._foreach_lerp_(means, grads, 1 - momentum)
        ahead = torch._foreach_lerp(grads, means, momentum) if group["nesterov"] else means
        torch._foreach_mul_(tensors, 1 - group["lr"] * group["weight_decay"])
        turns = [
            Turn(weight, direction)
            for one, update in zip(moving, ahead, strict=True)
            for weight, direction in zip(one.matrices(one.tensor), one.matrices(update), strict=True)
        ]
        for batch in _batches(turns):
            turned = _turned(batch, group["precision"], group["iterations"])
            for turn, matrix in zip(batch, turned, strict=True):
                ratio = _ratio(group["size"], *turn.weight.shape)
                turn.weight.add_(turn.lying(matrix), alpha=-group["lr"] * ratio)


def orthogonalise(x: Float[Tensor, "*n a b"], iterations: int) -> Float[Tensor, "*n a b"]:
    """Pushes the singular values of a matrix or of a stack of them, a <= b, to between about 0.7 and 1.2."""
    a, b, c = COEFFICIENTS
    add = torch.addmm if x.dim() == 2 else torch.baddbmm
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp(min=_EPS)
    for _ in range(iterations):
        gram = x @ x.mT  # [n a a]
        polynomial = add(gram, gram, gram, beta=b, alpha=c)
        x = add(x, polynomial, x, beta=a)
    return x


def _turned(batch: Sequence[Turn], precision: torch.dtype | None, iterations: int) -> Sequence[Tensor]:
    """The orthogonalised directions, lying."""
    first = batch[0].direction
    dtype = precision or _precision(first)
    if len(batch) == 1:  # as it lies in memory: a CPU multiplies by a transpose without a copy, but not in a stack
        return (orthogonalise(batch[0].lying(first.to(dtype)), iterations),)
    lying = [turn.lying(turn.direction) for turn in batch]
    stack = first.new_empty((len(lying), *lying[0].shape), dtype=dtype)
    torch._foreach_copy_(list(stack.unbind()), lying)
    return orthogonalise(stack, iterations).unbind()


def _precision(matrix: Tensor) -> torch.dtype:
    """Half a precision turns well enough, where the hardware has it: emulated it would only lose time."""
    if matrix.dtype == torch.float64:
        return torch.float64
    if matrix.is_cuda:
        has = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        has = matrix.is_cpu and (torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported())
    return torch.bfloat16 if has else torch.float32


def _batches(turns: Iterable[Turn]) -> Iterator[list[Turn]]:
    """Matrices of one shape, lying or standing, as many together as memory should hold."""
    alike: dict[tuple[Any, ...], list[Turn]] = {}
    for turn in turns:
        key = (turn.lying(turn.direction).shape, turn.direction.dtype, turn.direction.device)
        alike.setdefault(key, []).append(turn)
    for same in alike.values():
        first = same[0].direction
        most = max(1, _STACKED.get(first.device.type, _STACKED_ELSEWHERE) // first.numel())
        yield from (same[start : start + most] for start in range(0, len(same), most))


def _is_matrix(one: LearnedTensor) -> bool:
    return one.treatment.matrix and one.tensor.dim() == 2


def _ratio(size: str, rows: int, columns: int) -> float:
    return 0.2 * sqrt(max(rows, columns)) if size == "adamw" else sqrt(max(1.0, rows / columns))
