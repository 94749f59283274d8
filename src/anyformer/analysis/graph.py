"""The dependency graph of a part: which output depends on which input, and through how many sequential steps.

The part is traced into tensor operations. Every input element of an operation is perturbed: the outputs that change
depend on it. The operation is a *step* if the same perturbation at another point changes them by another amount, that
is, if it is not linear. Linear operations are not counted: any sequence of them is a single matrix product.
    latest_i = the longest chain of steps before output i ;  nearest_ij = the shortest from input j to output i
"""

import math
import operator
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg

NEVER = math.inf
SAME = 1e-9
"""Differences in float64 below this are rounding errors."""
Function: TypeAlias = Callable[[Tensor], Tensor]
"""x [1 t d] -> y [1 t d]."""


class Steps(NamedTuple):
    """Longest chain of steps before each of n elements, and the shortest from each input position: [n] and [n s]."""

    latest: Tensor
    nearest: Tensor
    """Infinite where an element does not depend on the input."""


def steps(function: Function, length: int, width: int) -> Steps:
    """The steps of a function of a sequence, computed in float64."""
    x = torch.randn(1, length, width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    walk = _Walk(trace(function, x))
    with torch.no_grad():
        walk.run(x)
    output = next(node for node in reversed(walk.graph.nodes) if node.op == "output")
    (last,) = walk.reached[output.all_input_nodes[0]]
    assert last is not None
    return Steps(last.latest.view(length, -1).amax(1), last.nearest.view(length, -1, length).amin(1))


def trace(function: Function, x: Tensor) -> GraphModule:
    """The FX graph of all tensor operations of a call."""
    with torch.no_grad():
        graph: GraphModule = make_fx(function)(x)
    return graph


def launches(graph: GraphModule) -> int:
    """The longest chain of dependent tensor operations; views are not counted."""
    depth: dict[Node, int] = {}
    for node in graph.graph.nodes:
        before = max((depth[source] for source in node.all_input_nodes), default=0)
        computes = node.op == "call_function" and node.target is not operator.getitem and not node.target.is_view
        depth[node] = before + computes
    return max(depth.values())


def distances(follows: Mapping[int, Collection[int]], start: int) -> dict[int, int]:
    """Breadth-first search: the fewest edges from `start` to each node that can be reached."""
    away, queue = {start: 0}, deque([start])
    while queue:
        node = queue.popleft()
        for following in follows[node]:
            if following not in away:
                away[following] = away[node] + 1
                queue.append(following)
    return away


class _Walk(Interpreter):
    """Runs a traced function and records the `Steps` of every tensor."""

    def __init__(self, graph: GraphModule):
        super().__init__(graph)
        self.reached: dict[Node, list[Steps | None]] = {}

    def run_node(self, n: Node) -> Any:
        out = super().run_node(n)
        if n.op == "placeholder":
            self.reached[n] = [_beginning(out)]
        elif n.op == "call_function" and n.target is operator.getitem:
            source, place = n.args
            if isinstance(source, Node) and source in self.reached and isinstance(place, int):
                self.reached[n] = [self.reached[source][place]]
        elif n.op == "call_function":
            self._reach(n)
        return out

    def _reach(self, node: Node) -> None:
        known = {source: self.reached[source][0] for source in node.all_input_nodes if source in self.reached}
        reached = {source: reach for source, reach in known.items() if reach is not None}
        if not reached:
            return
        latest, nearest = (torch.cat(column) for column in zip(*reached.values(), strict=True))
        here = [self.env[source] for source in reached]
        elsewhere = [x + torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(1)) for x in here]
        moved = [_moves(lambda values: self._again(node, list(reached), values), at) for at in (here, elsewhere)]
        self.reached[node] = [_step(one, other, latest, nearest) for one, other in zip(*moved, strict=True)]

    def _again(self, node: Node, sources: Sequence[Node], values: Sequence[Tensor]) -> list[Tensor | None]:
        """Runs the operation on other inputs and returns its floating-point outputs, flattened; None for others."""
        replaced = dict(zip(sources, values, strict=True))
        fill = partial(map_arg, fn=lambda one: replaced[one] if one in replaced else self.env[one])
        assert callable(node.target)
        out = node.target(*fill(node.args), **fill(node.kwargs))
        values = out if isinstance(out, tuple | list) else (out,)
        return [x.flatten() if isinstance(x, Tensor) and x.is_floating_point() else None for x in values]


def _beginning(x: Tensor) -> Steps:
    """The reach of the input: no steps before any element, and no steps from its own position only."""
    position = torch.arange(x.shape[1])[None, :, None].expand_as(x).flatten()
    away = torch.full((x.numel(), x.shape[1]), NEVER)
    return Steps(torch.zeros(x.numel()), away.scatter(1, position[:, None], 0.0))


def _moves(function: Callable[[Sequence[Tensor]], list[Tensor | None]], at: Sequence[Tensor]) -> list[Tensor | None]:
    """[m n] for each output: the change of its n elements when each of the m input elements is increased by one."""
    base, moved = function(at), []
    for place, value in enumerate(at):
        nudged = value.flatten().repeat(value.numel(), 1)
        nudged.diagonal().add_(1.0)
        moved += [function([*at[:place], one.view(value.shape), *at[place + 1 :]]) for one in nudged]
    return [
        None if start is None else torch.stack([row[place] - start for row in moved])  # type: ignore[operator]
        for place, start in enumerate(base)
    ]


def _step(one: Tensor | None, other: Tensor | None, latest: Tensor, nearest: Tensor) -> Steps | None:
    if one is None or other is None:
        return None
    step = 0.0 if torch.allclose(one, other, atol=SAME) else 1.0
    depends = (one != 0) | (other != 0)  # [m n]
    waits = latest[:, None].where(depends, -NEVER).amax(0).clamp(min=0.0) + step
    columns = [column[:, None].where(depends, NEVER).amin(0) for column in nearest.unbind(1)]
    return Steps(waits, torch.stack(columns, dim=1) + step)
