"""Adaptive computation time over depth: a position stops after as many layers as it decides itself.

y = sum_{n <= N} w_n h_n ;  p_n = sigmoid(W h_{n-1} + b) ;  N: the first n with p_1 + .. + p_n >= 1 - eps, or the last
w_n = p_n for n < N ;  w_N = R = 1 - sum_{n < N} p_n ;  ponder loss: the mean of N + R over the tokens
                                                          (arXiv 1603.08983; Universal Transformer, arXiv 1807.03819)
N and w are those of one position. A position that has stopped keeps its state, which later layers still attend to.
Every layer runs for all positions, so that the caches of decoding hold each position at each layer: halting bounds the
depth of a position, and saves no time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch
from torch import Tensor

from anyformer.core.fields import Range
from anyformer.core.frame import Frame, State
from anyformer.core.module import Linear, Module, Tap
from anyformer.core.part import EMPTY, Out, add_losses
from anyformer.core.spec import Spec
from anyformer.ops.devices import at_least_float32


@dataclass(frozen=True, kw_only=True)
class Halting(Spec):
    """Adaptive computation time: how many layers a position passes is learned."""

    eps: Annotated[float, Range(low=0.0, high=1.0)] = 0.01
    """A position stops when its halting probabilities sum to 1 - eps, so that one layer can be enough."""
    ponder: Annotated[float, Range(low=0.0)] = 0.01
    """Weight of the ponder loss in training: the mean number of layers of a position, plus its remainder."""


class HaltingModule(Module):
    def __init__(self, spec: Halting, dim: int):
        super().__init__()
        self.threshold, self.ponder = 1.0 - spec.eps, spec.ponder
        self.probability = Linear(dim, 1, role="gate", bias=True)
        self.weights = Tap()

    def forward(self, x: Tensor, frame: Frame, state: State | None, steps: Sequence[Callable[..., Out]]) -> Out:
        """Runs steps one after the other and returns the weighted sum of their outputs."""
        spent = torch.zeros_like(x[..., 0], dtype=at_least_float32(x))  # sum of the weights so far [b t]
        y, pondered, running = torch.zeros_like(x), torch.zeros_like(spent), torch.ones_like(spent, dtype=torch.bool)
        states, weights, layers, losses = [], [], [], EMPTY
        final: tuple[State, ...] = ()
        for index, step in enumerate(steps):
            remainder, last = 1 - spent, index == len(steps) - 1
            weight, goes_on = remainder, torch.zeros_like(running)
            if not last:
                p = self.probability(x)[..., 0].to(spent.dtype).sigmoid()
                goes_on = running & (spent + p < self.threshold)
                weight = torch.where(goes_on, p, remainder)
            weight = weight.where(running, 0.0)
            out = step(x, frame, None if state is None else state[index])
            x = torch.where(running[..., None], out.y, x)
            y = y + weight[..., None].type_as(x) * x
            pondered = pondered + running + remainder.where(running & ~goes_on, 0.0)
            spent, running = spent + weight, goes_on
            weights.append(weight)
            layers.append(x)
            states.append(out.state)
            losses, final = add_losses(losses, out.losses), final + out.final
        self.weights(torch.stack(weights, dim=-1))  # [b t n]
        if self.training and self.ponder:
            valid = torch.ones_like(running) if frame.valid is None else frame.valid
            mean = pondered.where(valid, 0.0).sum() / valid.sum().clamp(min=1)
            losses = add_losses(losses, {"ponder": self.ponder * mean})
        return Out(y, None if state is None else tuple(states), losses, None, final, tuple(layers))

    if TYPE_CHECKING:
        __call__ = forward
