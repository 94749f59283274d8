"""How the cost of a layer grows: exponents fitted to operations, chains, paths, bytes and seconds.

cost(n) ~ n^e ;  e is the slope of log cost over log n, by least squares.
"""

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from anyformer.analysis.families import function, layers, unfilled
from anyformer.analysis.graph import Steps, distances, launches, steps, trace
from anyformer.core import Module

PRODUCTS_OF_TOKENS = ("aten.bmm", "aten.baddbmm")
"""Matrix products of tokens with tokens; all others are with weights."""

TIMED, SECONDS = "timed lengths", "seconds, "
"""Names of the figures of time: the lengths, and the seconds of each contestant, in front of its name."""


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The exponent e of cost ~ size^e."""
    return float(np.polyfit(np.log(np.asarray(sizes, float)), np.log(np.asarray(costs, float)), 1)[0])


def exponents(figures: Mapping[str, Any], sizes: str) -> dict[str, float]:
    """The exponent of every figure but the sizes and the times, over the sizes."""
    counts = {name: costs for name, costs in figures.items() if name != TIMED and not name.startswith(SECONDS)}
    return {name: exponent(figures[sizes], costs) for name, costs in counts.items() if name != sizes}


def time_exponents(figures: Mapping[str, Any]) -> dict[str, float]:
    """The exponent of the seconds of each name, over the lengths that were timed."""
    times = {name.removeprefix(SECONDS): costs for name, costs in figures.items() if name.startswith(SECONDS)}
    return {name: exponent(figures[TIMED], costs) for name, costs in times.items()}


def parameters(*kinds: Mapping[str, Any], dim: int) -> int:
    with torch.device("meta"):
        return sum(weight.numel() for weight in unfilled(*kinds, dim=dim).parameters())


def operations(*kinds: Mapping[str, Any], dim: int, length: int, causal: bool = True) -> tuple[int, int]:
    """FLOPs of a forward pass by torch's counter: (of tokens with weights, of tokens with tokens)."""
    stack, x = layers(*kinds, dim=dim, causal=causal), torch.zeros(1, length, dim)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        function(stack)(x)
    counts = {str(op): int(flops) for op, flops in counter.get_flop_counts()["Global"].items()}
    pairs = sum(counts.get(op, 0) for op in PRODUCTS_OF_TOKENS)
    return sum(counts.values()) - pairs, pairs


def steps_of(*kinds: Mapping[str, Any], length: int, dim: int = 2) -> Steps:
    """Sequential steps of every output position of these layers, as defined in `graph`."""
    return steps(function(layers(*kinds, dim=dim).double()), length, dim)


def chain(*kinds: Mapping[str, Any], length: int) -> int:
    """The longest chain of steps (operations that are not linear)."""
    return int(steps_of(*kinds, length=length).latest.max())


def chain_of_launches(*kinds: Mapping[str, Any], length: int) -> int:
    """The longest chain of tensor operations, linear ones included."""
    return launches(trace(function(layers(*kinds, dim=2)), torch.zeros(1, length, 2)))


def path(*kinds: Mapping[str, Any], length: int) -> float:
    """The shortest path from the first to the last token, in steps; infinite if there is none."""
    return float(steps_of(*kinds, length=length).nearest[-1, 0])


def state_path(kind: Mapping[str, Any], length: int) -> int:
    """The longest shortest path between two states of a recurrent layer, by breadth-first search.

    State j is followed by state i if one step more leads from token j to state i than to its own state.
    """
    nearest = steps_of(kind, length=length).nearest
    between = (nearest - nearest.diagonal()).tolist()  # [i][j]
    follows = {j: [i for i in range(length) if between[i][j] == 1] for j in range(length)}
    return max(away for start in range(length) for away in distances(follows, start).values())


def stacked_path(kind: Mapping[str, Any], reach: int, length: int) -> float:
    """`path` through as many layers as needed if each one reaches `reach` tokens back."""
    return path(*[kind] * -(-(length - 1) // reach), length=length)


def timed(
    functions: Mapping[str, Callable[[Tensor], Any]], inputs: Sequence[Tensor], rounds: int = 5
) -> dict[str, Any]:
    """The figures of time: the lengths of the inputs [b t ...], and the seconds of each function on each input."""
    times = {name: [seconds(partial(act, x), rounds) for x in inputs] for name, act in functions.items()}
    return {TIMED: [x.shape[1] for x in inputs], **{SECONDS + name: costs for name, costs in times.items()}}


def gpu_seconds(act: Callable[[], Any]) -> float:
    """The wall-clock time of the fastest round on a GPU, from the first launch to the end of the last kernel."""

    def complete() -> None:
        act()
        torch.cuda.synchronize()

    return _fastest(complete, time.perf_counter, rounds=5)


def seconds(act: Callable[[], Any], rounds: int = 5) -> float:
    """The time of the fastest round; slower ones were disturbed by other processes.

    With one thread it is the CPU time of this process, which is the wall-clock time of an otherwise idle machine.
    """
    return _fastest(act, time.process_time if torch.get_num_threads() == 1 else time.perf_counter, rounds)


def _fastest(act: Callable[[], Any], clock: Callable[[], float], rounds: int) -> float:
    act()
    times = []
    for _ in range(rounds):
        begin = clock()
        act()
        times.append(clock() - begin)
    return min(times)


class PeakMemory(TorchDispatchMode):
    """Peak bytes of the tensors allocated inside the context, by tracking the lifetime of their storages."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.alive: dict[int, int] = {}
        self.now = self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for storage in (leaf.untyped_storage() for leaf in tree_leaves(out) if isinstance(leaf, Tensor)):
            if storage._cdata not in self.alive:
                self.alive[storage._cdata] = storage.nbytes()
                self.now += storage.nbytes()
                weakref.finalize(storage, self._free, storage._cdata)
        self.most = max(self.most, self.now)
        return out

    def _free(self, storage: int) -> None:
        self.now -= self.alive.pop(storage)


def kept_bytes(stack: Module, x: Tensor) -> int:
    """Peak bytes of a forward pass that stores its activations for a backward pass."""
    with PeakMemory() as memory:
        y = function(stack)(x)
    assert y.requires_grad
    return int(memory.most)
