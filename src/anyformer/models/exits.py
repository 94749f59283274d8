"""Early exits: the head can answer after inner layers too, so that easy rows pass fewer layers.

y = h_n of the first exit n with max softmax(head(h_n)) > threshold, or of the last layer          (arXiv 1709.01686)
All exits share the norm and the head behind the last layer. In training every layer runs, and `Out.layers` has the
hidden states of the inner exits, for the objective `every_exit`. In evaluation a row of which the head is confident
leaves the batch, and the other rows go on as a smaller one. The cache of a decoder holds every token at every layer, so
that calls with a state run all layers, and words that are generated cannot leave early.
"""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Bool
from torch import Tensor

from anyformer.core.fields import Count, Range
from anyformer.core.frame import Frame
from anyformer.core.model import HeadSpec
from anyformer.core.part import EMPTY, Out, add_losses
from anyformer.core.spec import Spec
from anyformer.errors import SpecError


@dataclass(frozen=True, kw_only=True)
class Exits(Spec):
    """Early exits: after which layers the head can answer, and how confident it must be."""

    every: Count = 1
    """Number of layers from one exit to the next."""
    threshold: Annotated[float, Range(low=0.0, high=1.0)] = 1.0
    """In evaluation a row leaves at the first exit where the highest probability is above this, for every token if the
    head scores tokens; 1: never."""

    def inner(self, depth: int) -> range:
        """The numbers of the layers, counted from 1, behind which there is an exit before the last layer."""
        return range(self.every, depth, self.every)

    def check_place(self, depth: int, head: HeadSpec, *, causal: bool) -> None:
        """Raises SpecError if a stack of this depth cannot have these exits before this head."""
        if not self.inner(depth):
            raise SpecError(f"every={self.every} gives no exit before the last of {depth} layers. Use a smaller one.")
        if self.threshold < 1.0 and not head.has_probabilities:
            raise SpecError(f"a {head.kind} head gives no probabilities to compare. Set threshold=1 or use another.")
        if self.threshold < 1.0 and causal and not head.pools:
            raise SpecError("the cache of a decoder needs all layers of each token. Set threshold=1.")

    def confident(self, scores: Tensor, frame: Frame) -> Bool[Tensor, " b"]:
        """The rows whose highest probability is above the threshold, at each of their tokens."""
        above = scores.float().softmax(-1).amax(-1) > self.threshold  # [b] or [b t]
        if above.dim() == 1:
            return above
        return (above if frame.valid is None else above | ~frame.valid).all(1)


def leave_early(
    steps: Sequence[Callable[..., Out]],
    exits: Container[int],
    confident: Callable[[Tensor, Frame], Tensor],
    x: Tensor,
    frame: Frame,
) -> Out:
    """Runs steps one after the other, behind each exit only for the rows of which the head is not confident yet.
    Returns each row as it left."""
    y, rows, losses = torch.empty_like(x), torch.arange(len(x), device=x.device), EMPTY
    for number, step in enumerate(steps, start=1):
        out = step(x, frame, None)
        x, losses = out.y, add_losses(losses, out.losses)
        if number not in exits:
            continue
        leaving = confident(x, frame)
        y[rows[leaving]] = x[leaving]
        staying = (~leaving).nonzero()[:, 0]
        if not len(staying):
            return Out(y, losses=losses)
        if len(staying) < len(rows):  # a frame of some rows has no fast paths, so keep that of all while it lasts
            rows, x, frame = rows[staying], x[staying], frame.take(staying)
    y[rows] = x
    return Out(y, losses=losses)
