"""How much each output of a part depends on each input: a substitute for attention weights in other parts.

influence_ij = |dy_i / dx_j|_F = sqrt(d/k sum_p |v_p^T dy_i/dx_j|^2),  v_1 .. v_k orthonormal directions of y_i

With k = d directions this is the exact norm of the Jacobian block; with fewer, its square is an unbiased estimate.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

Function: TypeAlias = Callable[[Tensor], Tensor]
"""x [b s d] -> y [b t d], where the rows of a batch are independent."""

WORK = 1 << 17
"""Maximum number of tokens in all forward and backward passes for one picture."""
AT_ONCE = 1 << 13
"""Maximum number of tokens in one call."""


class Influence(NamedTuple):
    """The norms, and the number of directions, out of the width `of`, that they were estimated with."""

    norms: Float[Tensor, "t s"]
    directions: int
    of: int

    @property
    def exact(self) -> bool:
        return self.directions == self.of


def influence(function: Function, x: Float[Tensor, "1 s d"], work: int = WORK) -> Influence:
    """The influence of every x_j on every y_i. `function` is called with copies of x as rows of a batch."""
    with torch.no_grad():
        _, length, width = function(x).shape
    directions = max(1, min(width, work // (length * max(length, x.shape[1]))))
    probes = _orthonormal(directions, width).to(x)
    squares = x.new_zeros(length, x.shape[1])
    pairs = [(place, probe) for place in range(length) for probe in range(directions)]
    for start in range(0, len(pairs), rows := max(1, AT_ONCE // max(length, x.shape[1]))):
        _add(squares, function, x, probes, pairs[start : start + rows])
    return Influence((squares * (width / directions)).sqrt(), directions, width)


def _add(
    squares: Tensor,
    function: Function,
    x: Tensor,
    probes: Tensor,
    pairs: Sequence[tuple[int, int]],
) -> None:
    places, directions = torch.tensor(pairs, device=x.device).T
    with torch.enable_grad():
        copies = x.detach().expand(len(pairs), -1, -1).clone().requires_grad_()
        chosen = function(copies)[torch.arange(len(pairs), device=x.device), places]
        (slopes,) = torch.autograd.grad((chosen * probes[directions]).sum(), copies)
    squares.index_add_(0, places, slopes.square().sum(-1))


def mixes(function: Function, x: Float[Tensor, "1 t d"]) -> bool:
    """Whether the first or the last output depends on any token other than its own."""
    if x.shape[1] == 1:
        return False
    for place in (0, -1):
        with torch.enable_grad():
            leaf = x.detach().clone().requires_grad_()
            (slopes,) = torch.autograd.grad(function(leaf)[0, place].square().sum(), leaf)
        slopes[0, place] = 0.0
        if bool(slopes.any()):
            return True
    return False


def _orthonormal(count: int, width: int) -> Float[Tensor, "k d"]:
    rng = torch.Generator("cpu").manual_seed(0)
    drawn = torch.randn(width, count, generator=rng, dtype=torch.float64)
    basis: Tensor = torch.linalg.qr(drawn).Q.T.float()
    return basis


def entropy(weights: Float[Tensor, "*h t s"]) -> Float[Tensor, "*h"]:
    """Mean entropy of the rows, in nats: log s for uniform weights, 0 if all weight is on one token."""
    mean_entropy: Tensor = torch.special.entr(_shares(weights)).sum(-1).mean(-1)
    return mean_entropy


def distance(weights: Float[Tensor, "*h t t"]) -> Float[Tensor, "*h"]:
    """Mean distance, in tokens, between a token and the tokens that it attends to."""
    places = torch.arange(weights.shape[-1], device=weights.device)
    away = (places[:, None] - places[None, :]).abs()
    return (_shares(weights) * away).sum(-1).mean(-1)


def _shares(weights: Tensor) -> Tensor:
    """The rows normalised to a sum of one; a row of zeros stays zero."""
    total = weights.sum(-1, keepdim=True)
    return weights / total.where(total > 0, math.inf)
