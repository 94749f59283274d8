"""The diagram of a model unrolled over a few tokens: the boxes of each stack once for every token, left to right.

A state is carried to the next token, attention reads the inputs of other tokens, and an output is the next input.
Whether an encoder carries a state forward, back or both ways is measured: y_i depends on x_j if dy_i/dx_j is not zero.
"""

from collections.abc import Iterator

import torch

from anyformer.core import Frame, ModelSpec, PartSpec, Site, StackPlace, initialise
from anyformer.drawing.diagram import Column, Diagram, Edge, branches_of, diagram, sites_of
from anyformer.models.single import stacks_of
from anyformer.parts.inits.xavier import Xavier

LANE = 84
"""Pixels between the boxes of two tokens."""


def unrolled(spec: ModelSpec, steps: int) -> Diagram:
    """The diagram of a model over `steps` tokens, and over as many tokens of the source if it reads one."""
    once, carries = diagram(spec), _directions(spec)
    columns = [_column(column, step, steps) for column in once.columns for step in range(1, steps + 1)]
    return Diagram(columns, [copy for edge in once.edges for copy in _copies(edge, steps, carries)], LANE)


def _column(column: Column, step: int, steps: int) -> Column:
    nodes = [node._replace(name=_at(node.name, step)) for node in column.nodes]
    nodes[0] = nodes[0]._replace(text=f"token {step}")
    if step > 1:
        return Column(nodes, [])
    whole = [frame._replace(first=_at(frame.first, 1), last=_at(frame.last, steps)) for frame in column.frames]
    return Column(nodes, whole)


def _at(node: str, step: int) -> str:
    return f"{node}@{step}"


def _copies(edge: Edge, steps: int, carries: dict[str, set[int]]) -> Iterator[Edge]:
    """The arrows between the copies of two boxes."""
    every, before = range(1, steps + 1), ""
    if edge.look == "carried" and edge.start != edge.end:  # the encoder's final states start the decoder
        *_, last = (carries[place] for place in carries if place.startswith(edge.start.partition(".")[0]))
        pairs, before = [(1 if way < 0 else steps, 1) for way in sorted(last)], _at(edge.end, 1)
    elif edge.look == "carried":
        pairs = [(step, step + way) for way in sorted(carries[edge.start]) for step in every if step + way in every]
    elif edge.look == "feedback":
        pairs = [(step, step + 1) for step in every[:-1]]
    elif edge.look == "cross":
        pairs, before = [(key, query) for query in every for key in every], _at(edge.end, 1)
    elif edge.look == "masked":
        pairs = [(key, query) for query in every for key in range(1, query)]
    elif edge.look == "self":
        pairs = [(key, query) for query in every for key in every if key != query]
    else:
        pairs = [(step, step) for step in every]
    yield from (Edge(_at(edge.start, start), _at(edge.end, end), edge.look, before) for start, end in pairs)


def _directions(spec: ModelSpec) -> dict[str, set[int]]:
    """By box of a part: 1 if a state is carried to the next token, -1 if to the one before, or both."""
    sites = sites_of(spec)
    return {
        place: {1} if sites[name].causal else _dependences(branch.part, sites[name])
        for name, stack in stacks_of(spec).items()
        for place, branch in branches_of(name, stack.stack)
    }


def _dependences(spec: PartSpec, site: Site) -> set[int]:
    part = spec.place(site)
    for module in (part, site.shared):
        initialise(module, Xavier(), 0)
    x = torch.randn(1, 2, site.dim, generator=torch.Generator().manual_seed(0)).requires_grad_()
    y = part.eval()(x, Frame(place=StackPlace(inputs=x))).y
    slopes = [torch.autograd.grad(y[0, at].sum(), x, retain_graph=True)[0][0, 1 - at] for at in range(2)]
    return {way for way, slope in zip((-1, 1), slopes, strict=True) if bool(slope.any())}
