"""Work as a CUDA graph, whose replay costs one launch.

`torch.compile(mode="reduce-overhead")` skips CUDA graphs without a warning when a state is written in place, so the
capture is done by hand: every tensor of the work keeps its address.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from anyformer.core import State

Capture = Callable[[Callable[[], None]], Callable[[], None]]

_WARM_UP = 3
_RECOMPILES = 1024
"""Every batch size and every source length compiles a step of its own."""


def captured(body: Callable[[], None]) -> Callable[[], None]:
    """The body as one CUDA graph. A replay writes to the tensors that the last call of the body left."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), _recompile_limits():
        for _ in range(_WARM_UP):
            body()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may pin memory meanwhile
        body()
    return graph.replay


def _recompile_limits() -> Any:
    """Past the first limit a function compiled with fullgraph raises; the second counts over all engines."""
    names = "recompile_limit", "accumulated_recompile_limit"
    return torch._dynamo.config.patch(dict.fromkeys(names, _RECOMPILES))


def put_back(buffers: State, values: State) -> None:
    """Copies values that were not written in place to the addresses of the buffers."""
    for buffer, value in zip(tree_leaves(buffers), tree_leaves(values), strict=True):
        if buffer is not value:
            buffer.copy_(value)
