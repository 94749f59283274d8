"""Work as CUDA graphs: what single steps, searches and writing share that are captured.

`torch.compile(mode="reduce-overhead")` leaves out graphs without a word when a state is written in place, so the
capture is done by hand: every tensor of the work keeps its address, and a replay costs one launch.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils._pytree import tree_leaves

from anyformer.core import State

Capture = Callable[[Callable[[], None]], Callable[[], None]]
T = TypeVar("T")

STEPS = 8
"""Between two looks of the host. A look costs a wait, and what ends before it goes on in vain."""
_WARM_UP = 3
_RECOMPILES = 1024
"""A batch size and a source length each make a step of its own."""


def captured(body: Callable[[], None]) -> Callable[[], None]:
    """The same work as one CUDA graph. Whatever the body keeps of its last call is where a replay writes."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), _limits():
        for _ in range(_WARM_UP):
            body()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # others may pin memory meanwhile
        body()
    return graph.replay


def _limits() -> Any:
    """Past the first of these a function that is one graph would raise; the second counts over all engines."""
    names = "recompile_limit", "accumulated_recompile_limit"
    return torch._dynamo.config.patch(dict.fromkeys(names, _RECOMPILES))


def put_back(buffers: State, values: State) -> None:
    """What was not written in place goes back to its address."""
    for buffer, value in zip(tree_leaves(buffers), tree_leaves(values), strict=True):
        if buffer is not value:
            buffer.copy_(value)


class Idle(Generic[T]):
    """What is captured and serves nobody now, by what it is made for."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, list[T]] = {}

    def take(self, key: Hashable) -> T | None:
        kept = self._kept.get(key)
        return kept.pop() if kept else None

    def put(self, key: Hashable, item: T) -> None:
        self._kept.setdefault(key, []).append(item)


def places(positions: Int[Tensor, " b"], steps: int, room: int) -> list[Int[Tensor, " b"]]:
    """Where the rows stand now and after each of so many steps; whoever is done stays at its last place."""
    rows = len(positions)
    # compiled steps copy what does not begin at a multiple of 16 bytes
    wide = positions if rows > 1 else positions.expand(2)
    ahead = torch.arange(steps + 1, device=positions.device)[:, None]
    return [row[:rows] for row in (wide + ahead).clamp(max=room - 1)]


def filled_up(places: Sequence[int]) -> list[int]:
    """To a power of two, with a copy: graphs have few sizes."""
    return [*places, *[places[0]] * ((1 << (len(places) - 1).bit_length()) - len(places))]
