"""Influence: how much each output depends on each input. A substitute for attention weights in any part or model.

influence_ij = |dy_i / dx_j|_F = sqrt(d/k sum_p |v_p^T dy_i/dx_j|^2),  v_1 .. v_k orthonormal directions of y_i

With k = d directions this is the exact norm of the Jacobian block; with fewer, its square is an unbiased estimate.
`reach` gives the shares |dh_i/dx_j| / sum_k |dh_i/dx_k| of a model, x entering its first layer and h leaving the last.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, tensor

from anyformer.core import Frame, Model, StackPlace
from anyformer.models.single import stack_modules_of

Function: TypeAlias = Callable[[Tensor], Tensor]
"""x [b s d] -> y [b t d], where the rows of a batch are independent."""

WORK = 1 << 17
"""Maximum number of tokens in all forward and backward passes for one picture."""
MODEL_WORK = 1 << 13
"""The same for a whole model: enough for a clear picture, and seconds for millions of weights."""
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
    drawn = torch.randn(width, directions, generator=torch.Generator("cpu").manual_seed(0), dtype=torch.float64)
    probes = torch.linalg.qr(drawn).Q.T.float().to(x)  # orthonormal directions [k d]
    squares = x.new_zeros(length, x.shape[1])
    pairs = [(place, probe) for place in range(length) for probe in range(directions)]
    for batch in torch.tensor(pairs, device=x.device).split(max(1, AT_ONCE // max(length, x.shape[1]))):
        places, directions_of_batch = batch.T
        with torch.enable_grad():
            copies = x.detach().expand(len(batch), -1, -1).clone().requires_grad_()
            chosen = function(copies)[torch.arange(len(batch), device=x.device), places]
            (slopes,) = torch.autograd.grad((chosen * probes[directions_of_batch]).sum(), copies)
        squares.index_add_(0, places, slopes.square().sum(-1))
    return Influence((squares * (width / directions)).sqrt(), directions, width)


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


def reach(model: Model, tokens: list[int]) -> Float[Tensor, "t s"]:
    """The share of each input token in each output token; rows sum to one. Uses the encoder if there is one."""
    reader = next(iter(stack_modules_of(model).values()))
    entered: list[Tensor] = []
    hook = reader.stack.register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0].detach()))
    try:
        reader.eval()(tensor([tokens], device=next(model.parameters()).device), Frame(), logits=False)
    finally:
        hook.remove()

    def states(x: Tensor) -> Tensor:
        return reader.stack(x, Frame(place=StackPlace(inputs=x))).y

    norms = influence(states, entered[0], MODEL_WORK).norms.cpu()
    shares: Tensor = norms / norms.sum(-1, keepdim=True).clamp_min(1e-30)
    return shares


def from_farther(shares: Float[Tensor, "t t"]) -> list[float]:
    """For each distance, the share that comes from farther away, averaged over the output tokens."""
    length = len(shares)
    return [float((shares.tril(-far - 1) + shares.triu(far + 1)).sum() / length) for far in range(length)]
