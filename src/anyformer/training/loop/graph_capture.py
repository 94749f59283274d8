"""Forward and backward as CUDA graphs that are captured without a compiler, one for each shape of batches.

The host launches a graph in the time of one kernel, while the thousands of kernels of a small model keep it busy for
longer than the GPU needs to run them. The kernels are those of eager calls, and so are the numbers.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.data.batching.batch import Batch
from anyformer.ops.cuda_graphs import GraphPool, waiting_forbidden
from anyformer.ops.devices import fork_rng

Factors = Mapping[str, float | Tensor]
"""Loss term -> its factor in the loss; tensors on the device inside a captured graph."""
Passes = Callable[[Batch, torch.Generator, Factors], Mapping[str, Tensor]]
"""Forward and backward over a batch on the device; returns the sum of each loss term, and leaves gradients."""
Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Captures a function, without running it, and returns what replays it."""

MOST_GRAPHS = 64
"""Graphs that are kept, at most: each holds gradients of its own. Batches of further shapes run eagerly."""


@dataclass(frozen=True, eq=False)
class CapturedBatch:
    """The graph of one shape, with the memory that it reads and writes."""

    batch: Batch
    factors: dict[str, Tensor]
    replay: Callable[[], None]
    sums: Mapping[str, Tensor]
    gradients: Sequence[Tensor | None]

    def run(self, batch: Batch, factors: Factors) -> None:
        """Replays the graph with other values."""
        for mine, other in zip(tensors(self.batch), tensors(batch), strict=True):
            mine.copy_(other, non_blocking=True)
        for name, factor in factors.items():
            self.factors[name].fill_(factor)
        self.replay()


class CapturedPasses:
    """Runs forward and backward, from the second batch of a shape on as a captured graph.

    Code that draws random numbers on the host or waits for the device cannot be captured. The first batch whose shape
    was seen before shows whether it does, without harm; if so, all batches run eagerly.
    """

    def __init__(
        self,
        passes: Passes,
        parameters: Sequence[Tensor],
        place: Callable[[Batch], Batch],
        capture: Capture | None = None,
    ):
        self._passes, self._parameters, self._place = passes, parameters, place
        self._seen, self._graphs = set[Hashable](), dict[Hashable, CapturedBatch]()
        self.capturable: bool | None = None
        """None as long as it is unknown."""
        self.capture = capture or GraphPool().capture

    def __call__(self, batch: Batch, rng: torch.Generator, factors: Factors) -> Mapping[str, Tensor]:
        """Like the eager passes. The next call overwrites sums and gradients."""
        shape = batch.shape, tuple(factors)
        if self.capturable is False or shape not in self._seen:
            self._seen.add(shape)
            return self._passes(self._place(batch), rng, factors)
        if self.capturable is None:
            return self._tried(batch, rng, factors)
        if shape not in self._graphs:
            if len(self._graphs) == MOST_GRAPHS:
                return self._passes(self._place(batch), rng, factors)
            self._graphs[shape] = self._captured(batch, rng, factors)
        captured = self._graphs[shape]
        captured.run(batch, factors)
        for parameter, gradient in zip(self._parameters, captured.gradients, strict=True):
            parameter.grad = gradient
        return captured.sums

    def _tried(self, batch: Batch, rng: torch.Generator, factors: Factors) -> Mapping[str, Tensor]:
        """Eager passes in which a wait for the device is an error; afterwards it is known whether they are capturable.

        A failed capture would leave torch's random generator unusable, so it must not be tried in vain."""
        placed, state = self._place(batch), rng.get_state()
        device = placed.tokens.device
        try:
            with fork_rng(device), waiting_forbidden(device):  # a second try draws the same dropout
                before = torch.get_rng_state()
                sums = self._passes(placed, rng, factors)
                self.capturable = rng.get_state().equal(state) and torch.get_rng_state().equal(before)
                return sums
        except RuntimeError as error:
            if "synchronizing" not in str(error):
                raise
        self.capturable = False
        for parameter in self._parameters:
            parameter.grad = None
        rng.set_state(state)
        return self._passes(placed, rng, factors)

    def _captured(self, batch: Batch, rng: torch.Generator, factors: Factors) -> CapturedBatch:
        placed, sums = self._place(batch), dict[str, Tensor]()
        scale = {name: torch.zeros((), device=placed.tokens.device) for name in factors}
        for parameter in self._parameters:
            parameter.grad = None  # so that the graph allocates gradients, and overwrites them at every replay
        replay = self.capture(lambda: sums.update(self._passes(placed, rng, scale)))
        return CapturedBatch(placed, scale, replay, sums, [parameter.grad for parameter in self._parameters])


def tensors(batch: Batch) -> list[Tensor]:
    """All tensors of a batch, in a fixed order."""
    leaves: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        leaves.append(tensor)
        return tensor

    batch.mapped(note)
    return leaves
