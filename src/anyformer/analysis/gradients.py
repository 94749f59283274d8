"""How the norm of a gradient changes during backpropagation through time, and the bound on it.

dh_t/dh_k = prod_{i=k+1..t} diag(phi'(a_i)) W ,  |dh_t/dh_k| <= (max|phi'| sigma_max(W))^(t-k)    (Pascanu et al. 2013)
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from anyformer.analysis.graph import Function

DIRECTIONS = 4
Activation: TypeAlias = Callable[[Tensor], Tensor]


def orthogonal(size: int) -> Float[Tensor, "n n"]:
    """A random rotation, in float64; always the same one."""
    drawn = torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rotation: Tensor = torch.linalg.qr(drawn).Q
    return rotation


def linear(x: Tensor) -> Tensor:
    return x


def state_gradients(weight: Tensor, activation: Activation, drive: float, steps: int) -> list[float]:
    """|dh_t/dh_0| for t = 1 .. steps of h_t = activation(W h_{t-1} + u_t), inputs u_t ~ N(0, drive²)."""
    size, rng = len(weight), torch.Generator().manual_seed(1)
    inputs = drive * torch.randn(steps, size, dtype=weight.dtype, generator=rng)

    def states(start: Tensor) -> Tensor:
        h, trajectory = start, []
        for u in inputs:
            h = activation(weight @ h + u)
            trajectory.append(h)
        return torch.stack(trajectory)

    jacobians = torch.func.jacrev(states)(1e-3 * torch.randn(size, dtype=weight.dtype, generator=rng))  # [t n n]
    return [float(norm) for norm in torch.linalg.matrix_norm(jacobians, ord=2)]


def slope(norms: Sequence[float]) -> float:
    """The change of log |gradient| for each token of distance, by least squares."""
    return float(np.polyfit(np.arange(len(norms)), np.log(np.maximum(norms, 1e-300)), 1)[0])


def gradients_by_distance(function: Function, x: Float[Tensor, "b t d"]) -> list[float]:
    """|dy_T / dx_{T-s}| for s = 0 .. T-1, root mean square over sequences and directions of y_T."""
    x, rng = x.detach().requires_grad_(), torch.Generator().manual_seed(0)
    squares, last = x.new_zeros(x.shape[1]), function(x)[:, -1]
    for _ in range(DIRECTIONS):
        direction = torch.randn(last.shape, dtype=last.dtype, generator=rng)
        (gradient,) = torch.autograd.grad((last * direction).sum(), x, retain_graph=True)
        squares += gradient.square().sum(-1).mean(0)
    return [float(norm) for norm in (squares / DIRECTIONS).sqrt().flip(0)]
