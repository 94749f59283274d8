"""Writing in rounds: several steps and the choice of a word after each, captured in one CUDA graph.

Nothing in it waits for the host, which sees only every few steps what was written and who is done. A row that is done
before goes on in vain, at its last place if need be; what it does there no other row can see.
"""

from collections.abc import Hashable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_leaves

from anyformer.core import fork
from anyformer.generation.accelerate.cuda_graphs import Capture, Idle, captured, places, put_back
from anyformer.generation.decoding import Graphs, shapes
from anyformer.generation.samplers.sampler import Sampler, picked


class SamplingBuffers(NamedTuple):
    """All that a round changes, with the batch first."""

    word: Int[Tensor, " b"]
    """The last that was chosen."""
    positions: Int[Tensor, " b"]
    """Where it will stand."""
    leaves: list[Tensor]
    """Of the model's state."""
    seen: list[Bool[Tensor, "b v"]]
    """Which words there have been; none if the sampler does not look back."""


class SamplingSetup(NamedTuple):
    """What is the same for all rounds of a batch."""

    sampler: Sampler
    steps: int
    tree: TreeSpec
    """How the leaves of the state hang together."""
    room: int
    """Places that the state has."""


class CapturedSampling:
    """Some steps of one shape, in buffers of their own."""

    def __init__(self, graphs: Graphs, page: SamplingBuffers, manner: SamplingSetup, capture: Capture):
        # this very sampler, not one like it: the graph reads tensors that it keeps
        self._graphs, self.manner, self.page = graphs, manner, fork(page)
        self._numbers = torch.zeros(manner.steps, len(page.word), dtype=torch.double, device=page.word.device)
        self._replay = capture(self._body)

    def load(self, page: SamplingBuffers) -> None:
        """Begins with this; always of the same shapes."""
        put_back(self.page, page)

    def __call__(self, numbers: Float[Tensor, "n b"]) -> Int[Tensor, "n b"]:
        """The words lie in a buffer: the next call overwrites them."""
        self._numbers.copy_(numbers)
        self._replay()
        return self._words

    def _body(self) -> None:
        (word, positions, leaves, seen), (sampler, steps, tree, room) = self.page, self.manner
        *before, positions = places(positions, steps, room)
        state, words = tree.unflatten(leaves), []
        for place, numbers in zip(before, self._numbers, strict=True):
            logits, state = self._graphs.call(word[:, None], place[:, None], state)
            word = picked(sampler, logits, numbers, seen)
            words.append(word)
        self._words = torch.stack(words)
        put_back(self.page, SamplingBuffers(word, positions, tree_leaves(state), seen))


class CapturedSamplings:
    """Captured rounds by shape. One serves one batch at a time, and goes back when that one is over; where the next of
    this shape has another sampler it makes room: each has a state of its own."""

    def __init__(self, graphs: Graphs, capture: Capture = captured):
        self._graphs, self._capture = graphs, capture
        self._idle = Idle[CapturedSampling]()

    def take(self, page: SamplingBuffers, manner: SamplingSetup) -> CapturedSampling:
        found = self._idle.take(_key(page, manner))
        if found is None or found.manner.sampler != manner.sampler:
            del found  # before another takes its memory
            found = CapturedSampling(self._graphs, page, manner, self._capture)
        found.load(page)
        return found

    def release(self, used: CapturedSampling) -> None:
        self._idle.put(_key(used.page, used.manner), used)


def _key(page: SamplingBuffers, manner: SamplingSetup) -> Hashable:
    return manner.steps, shapes(tree_leaves(page))
