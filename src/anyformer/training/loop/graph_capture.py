"""Updates as CUDA graphs that are captured without a compiler: for each shape of batches one of forward and backward,
and one of clipping and the optimiser's step.

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
from anyformer.optim.optimizer import Optimizer

Factors = Mapping[str, float | Tensor]
"""Loss term -> its factor in the loss; tensors on the device inside a captured graph."""
Passes = Callable[[Batch, torch.Generator, Factors], Mapping[str, Tensor]]
"""Forward and backward over a batch on the device; returns the sum of each loss term, and leaves gradients."""
Apply = Callable[[Mapping[str, Tensor], Sequence[str], float | Tensor | None], Tensor]
"""Updates the weights from the current gradients, given the sum of each loss term, the names of all terms and the
schedule's factor (None: no update); returns the numbers that the host needs."""
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
        self.replayed: CapturedBatch | None = None
        """The graph that wrote the current gradients; None after eager passes."""
        self.capture = capture or GraphPool().capture

    def __call__(self, batch: Batch, rng: torch.Generator, factors: Factors) -> Mapping[str, Tensor]:
        """Like the eager passes. The next call overwrites sums and gradients."""
        shape, self.replayed = (batch.shape, tuple(factors)), None
        if self.capturable is False or shape not in self._seen:
            self._seen.add(shape)
            return self._passes(self._place(batch), rng, factors)
        if self.capturable is None:
            return self._tried(batch, rng, factors)
        if shape not in self._graphs:
            if len(self._graphs) == MOST_GRAPHS:
                return self._passes(self._place(batch), rng, factors)
            self._graphs[shape] = self._captured(batch, rng, factors)
        self.replayed = captured = self._graphs[shape]
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


@dataclass(frozen=True, eq=False)
class CapturedUpdate:
    """The graph of an update, with the memory that it reads and writes."""

    factor: Tensor
    replay: Callable[[], None]
    numbers: list[Tensor]


class CapturedUpdates:
    """Updates the weights, after replayed passes by a graph that reads the gradients of their graph."""

    def __init__(
        self,
        apply: Apply,
        passes: CapturedPasses,
        optimizer: Optimizer,
        device: torch.device,
        capture: Capture | None = None,
    ):
        self._apply, self._passes, self._optimizer, self._device = apply, passes, optimizer, device
        self._graphs = dict[tuple[CapturedBatch, tuple[str, ...]], CapturedUpdate]()
        self.capture = capture or passes.capture

    def __call__(self, sums: Mapping[str, Tensor], names: Sequence[str], factor: float | Tensor | None) -> Tensor:
        """Like the eager update. The next call overwrites the numbers."""
        passes = self._passes.replayed
        if passes is None or factor is None or any(sums.get(name) is not value for name, value in passes.sums.items()):
            return self._apply(sums, names, factor)
        key = passes, tuple(names)
        if key not in self._graphs:
            self._graphs[key] = self._captured(passes.sums, names)
        update = self._graphs[key]
        update.factor.fill_(factor)
        update.replay()
        return update.numbers[0]

    def _captured(self, sums: Mapping[str, Tensor], names: Sequence[str]) -> CapturedUpdate:
        factor, numbers = torch.zeros((), device=self._device), list[Tensor]()

        def body() -> None:
            numbers[:] = [self._apply(sums, names, factor)]

        with self._optimizer.capturing():
            return CapturedUpdate(factor, self.capture(body), numbers)


def tensors(batch: Batch) -> list[Tensor]:
    """All tensors of a batch, in a fixed order."""
    leaves: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        leaves.append(tensor)
        return tensor

    batch.mapped(note)
    return leaves
