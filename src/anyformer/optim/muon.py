"""Muon: momentum for matrices, orthogonalised by Newton-Schulz iterations.

m <- momentum m + (1 - momentum) g ; u = (1 - momentum) g + momentum m ; X = u / |u|
five times X <- a X + b (X X^T) X + c (X X^T)^2 X ; w <- w - lr (decay w + s X)
s = 0.2 sqrt(max(rows, columns)), which gives updates the size of AdamW's (arXiv 2502.16982), or
sqrt(max(1, rows / columns)), as first proposed (https://kellerjordan.github.io/posts/muon). Only hidden matrices use
Muon; embeddings, heads, gains and biases have another optimiser. Matrices that are stored in one tensor (queries, keys,
values) are orthogonalised separately.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from anyformer.core import Chance, Count
from anyformer.errors import Problem, SpecError
from anyformer.ops.devices import has_bf16, is_sharded
from anyformer.optim.adamw import AdamW
from anyformer.optim.optimizer import TREATMENTS, Decay, LearnedTensor, Optimizer, OptimizerSpec

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the polynomial: the steepest at zero among those that keep singular values around 1."""
_EPS = 1e-7
_CPU_BATCH_ELEMENTS, _GPU_BATCH_ELEMENTS = 1 << 18, 1 << 27
"""Elements of the matrices that are orthogonalised together: on a CPU only small matrices gain from a batch; on a GPU
the limit bounds the memory of the copy."""


@dataclass(frozen=True, kw_only=True)
class Muon(OptimizerSpec, kind="muon"):
    """Orthogonalised momentum for hidden matrices, AdamW for the rest."""

    weight_decay: Decay = 0.1
    """Weight decay of matrices in each step, as a share of the learning rate."""
    momentum: Chance = 0.95
    """Decay of the mean gradient per step."""
    nesterov: bool = True
    """Nesterov momentum: mixes the gradient once more into the mean."""
    iterations: Count = 5
    """Newton-Schulz iterations."""
    size: Literal["adamw", "original"] = "adamw"
    """Size of an update: that of AdamW, so that its learning rates fit, or the original one."""
    rest: OptimizerSpec = AdamW()
    """Optimiser of everything that is not a hidden matrix, with its own learning rate; `transfer` holds for it too."""

    def check(self) -> None:
        super().check()
        others = [role for role in self.rates if not TREATMENTS[role].matrix]  # type: ignore[index]
        if others:
            text = "belongs to the optimiser `rest`. Set rest.rates."
            raise SpecError(problems=[Problem(f"rates.{role}", f"{role} {text}{role}.") for role in others])

    @property
    def fan_in_power(self) -> float:
        return 0.5 if self.size == "adamw" else 0.0  # the original size keeps the spectral norm of an update

    def build(self, parameters: Sequence[LearnedTensor]) -> Optimizer:
        matrices = [parameter for parameter in parameters if _is_matrix(parameter)]
        if any(is_sharded(parameter.tensor) for parameter in matrices):
            raise SpecError(
                "muon orthogonalises whole matrices, and these are sharded. Use adamw, adafactor, lion or sgd, or DDP."
            )
        others = [parameter for parameter in parameters if not _is_matrix(parameter)]
        optimizers = [super().build(matrices)] if matrices else []
        if others or not matrices:
            rest = replace(self.rest, transfer=self.transfer) if self.rest.transfer is None else self.rest
            optimizers.append(rest.build(others))
        states = {name: state for optimizer in optimizers for name, state in optimizer.states.items()}
        return Optimizer([stepper for optimizer in optimizers for stepper in optimizer.steppers], states)

    def stepper(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        names = ("momentum", "nesterov", "iterations", "size")
        return MuonStepper(groups, {name: getattr(self, name) for name in names} | {"precision": None})

    def fresh(self, parameter: Tensor) -> dict[str, Tensor]:
        return {"momentum_buffer": torch.zeros_like(parameter)}


class MatrixUpdate(NamedTuple):
    """A weight matrix and its momentum, before orthogonalisation; both are views."""

    weight: Tensor
    direction: Tensor


class MuonStepper(torch.optim.Optimizer):
    skips_on_device = True
    found_inf: Tensor | None = None
    """A scalar on the device; if it is 1, the next step changes nothing. None: the step is applied."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            parameters = [parameter for parameter in group["learned"] if parameter.tensor.grad is not None]
            if not parameters:
                continue
            lr: float | Tensor = group["lr"] if self.found_inf is None else group["lr"] * (1 - self.found_inf)
            updates = self._momentum_updates(parameters, group)
            torch._foreach_mul_([parameter.tensor for parameter in parameters], 1 - lr * group["weight_decay"])
            for batch in _batches_of_one_shape(updates):
                directions = _orthogonal_directions(batch, group["precision"], group["iterations"])
                for update, direction in zip(batch, directions, strict=True):
                    _descend(update.weight, direction, lr, _step_scale(group["size"], *update.weight.shape))

    def _momentum_updates(self, parameters: Sequence[LearnedTensor], group: dict[str, Any]) -> list[MatrixUpdate]:
        """Updates the mean gradients; one entry for each matrix, of which a tensor may hold several."""
        grads = [parameter.tensor.grad for parameter in parameters if parameter.tensor.grad is not None]
        means = [self.state[parameter.tensor]["momentum_buffer"] for parameter in parameters]
        if self.found_inf is not None:  # where the step is skipped, the mean takes the place of its gradient and stays
            skip = self.found_inf.bool()
            grads = [torch.where(skip, mean, grad) for mean, grad in zip(means, grads, strict=True)]
        torch._foreach_lerp_(means, grads, 1 - group["momentum"])
        directions = torch._foreach_lerp(grads, means, group["momentum"]) if group["nesterov"] else means
        return [
            MatrixUpdate(weight, direction)
            for parameter, tensor in zip(parameters, directions, strict=True)
            for weight, direction in zip(parameter.matrices(parameter.tensor), parameter.matrices(tensor), strict=True)
        ]


def _descend(weight: Tensor, direction: Tensor, lr: float | Tensor, scale: float) -> None:
    """weight <- weight - lr scale direction. A rate that is a tensor stays on its device."""
    if isinstance(lr, Tensor):
        weight.addcmul_(direction, lr, value=-scale)
    else:
        weight.add_(direction, alpha=-lr * scale)


def orthogonalise(x: Float[Tensor, "*n a b"], iterations: int) -> Float[Tensor, "*n a b"]:
    """Newton-Schulz: moves the singular values of a matrix or of a stack of them, a <= b, to between 0.7 and 1.2."""
    a, b, c = COEFFICIENTS
    add = torch.addmm if x.dim() == 2 else torch.baddbmm
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp(min=_EPS)
    for _ in range(iterations):
        gram = x @ x.mT  # [n a a]
        polynomial = add(gram, gram, gram, beta=b, alpha=c)
        x = add(x, polynomial, x, beta=a)
    return x


def _orthogonal_directions(
    batch: Sequence[MatrixUpdate], precision: torch.dtype | None, iterations: int
) -> Sequence[Tensor]:
    """The orthogonalised directions of matrices of one shape, up to transposition."""
    first = batch[0].direction
    dtype = precision or _precision(first)
    if len(batch) == 1:  # no stack: a CPU multiplies a transposed matrix without a copy, but not a transposed stack
        return (_wide(orthogonalise(_wide(first.to(dtype), first), iterations), first),)
    wide = [_wide(update.direction, update.direction) for update in batch]
    stack = first.new_empty((len(batch), *wide[0].shape), dtype=dtype)
    torch._foreach_copy_(list(stack.unbind()), wide)
    directions = orthogonalise(stack, iterations).unbind()
    return [_wide(direction, update.direction) for direction, update in zip(directions, batch, strict=True)]


def _wide(matrix: Tensor, original: Tensor) -> Tensor:
    """Transposes a matrix whose original is taller than wide, or back again: Newton-Schulz multiplies by X X^T, which
    is cheapest when X is wide."""
    return matrix.mT if original.shape[0] > original.shape[1] else matrix


def _precision(matrix: Tensor) -> torch.dtype:
    """bf16 is precise enough for Newton-Schulz; it is used where the hardware supports it."""
    if matrix.dtype == torch.float64:
        return torch.float64
    return torch.bfloat16 if has_bf16(matrix.device) else torch.float32


def _batches_of_one_shape(updates: Iterable[MatrixUpdate]) -> Iterator[list[MatrixUpdate]]:
    """Groups matrices of one shape, up to transposition: few large products instead of many small ones."""
    groups: dict[tuple[Any, ...], list[MatrixUpdate]] = {}
    for update in updates:
        key = (_wide(update.direction, update.direction).shape, update.direction.dtype, update.direction.device)
        groups.setdefault(key, []).append(update)
    for group in groups.values():
        first = group[0].direction
        elements = _CPU_BATCH_ELEMENTS if first.is_cpu else _GPU_BATCH_ELEMENTS
        size = max(1, elements // first.numel())
        yield from (group[start : start + size] for start in range(0, len(group), size))


def _is_matrix(parameter: LearnedTensor) -> bool:
    return parameter.treatment.matrix and parameter.tensor.dim() == 2


def _step_scale(size: str, rows: int, columns: int) -> float:
    return 0.2 * sqrt(max(rows, columns)) if size == "adamw" else sqrt(max(1.0, rows / columns))
