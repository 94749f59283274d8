"""On a GPU: what may not happen while a graph is captured."""

import gc

import pytest
import torch

from anyformer.ops.cuda_graphs import GraphPool

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


class Cycle:
    """A graph that only the garbage collector can free."""

    def __init__(self, x: torch.Tensor):
        self.replay, self.me = GraphPool().capture(lambda: x.add_(1)), self


def test_garbage_is_not_collected_while_a_graph_is_captured() -> None:
    x, places = torch.zeros(4, device="cuda"), list[list[int]]()
    before = gc.get_threshold()

    def body() -> None:
        x.add_(1)
        gc.set_threshold(1)  # from here on nearly every new list starts a collection
        places.extend([place] for place in range(1000))
        x.add_(1)

    try:
        Cycle(x)  # nothing refers to it any more
        replay = GraphPool().capture(body)
    finally:
        gc.set_threshold(*before)
    replay()
    assert gc.isenabled() and x.tolist() == [2.0] * 4
