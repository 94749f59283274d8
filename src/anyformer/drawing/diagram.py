"""A model as a drawing, made from its spec: boxes from the words at the bottom to the answer at the top, and arrows.

Who looks at whom is not written down for each kind of part but read off what it remembers: a state that grows with the
source looks across, one that grows with what was read looks at all of it, and one of a fixed size is carried along.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

import torch

from anyformer.core import Memory, ModelSpec, Part, PartSpec, Site, Spec, Tap, nbytes
from anyformer.errors import SpecError
from anyformer.models.block import Branch
from anyformer.models.single import Single, stacks_of
from anyformer.models.stack import Stack

Look = Literal["flow", "residual", "self", "masked", "cross", "carried", "feedback"]
SHORT, LONG = 8, 16


@dataclass(frozen=True)
class Node:
    """A box."""

    name: str
    text: str
    note: str = ""
    """What stands below, smaller."""


@dataclass(frozen=True)
class Edge:
    """An arrow between boxes, by name; one that comes back to its own box is what a part does along the sequence."""

    start: str
    end: str
    look: Look


@dataclass(frozen=True)
class RepeatFrame:
    """A line around boxes that are there several times."""

    first: str
    last: str
    text: str


@dataclass(frozen=True)
class Column:
    """One stack, from the bottom to the top."""

    nodes: tuple[Node, ...]
    frames: tuple[RepeatFrame, ...]


@dataclass(frozen=True)
class Diagram:
    """Columns from left to right, and all arrows."""

    columns: tuple[Column, ...]
    edges: tuple[Edge, ...]


def diagram(spec: ModelSpec) -> Diagram:
    """The diagram of a model; nothing is allocated."""
    stacks = stacks_of(spec)
    columns = {name: _column(name, stack) for name, stack in stacks.items()}
    sites = _sites(spec, stacks)
    edges = [edge for name, stack in stacks.items() for edge in _edges(name, stack, columns[name], sites[name])]
    first, last = next(iter(columns.values())), list(columns.values())[-1]
    if spec.needs_source:
        top = first.nodes[-1].name
        edges = [replace(edge, start=top) if edge.look == "cross" else edge for edge in edges]
        if not any(edge.look == "cross" for edge in edges):  # the decoder starts from the encoder's final state
            edges.append(Edge(top, "decoder.0.0", "carried"))
    return Diagram(tuple(columns.values()), (*edges, *((_feedback(last),) if spec.decodes else ())))


def _sites(spec: ModelSpec, stacks: Mapping[str, Single]) -> dict[str, Site]:
    """The site of each stack; that of a decoder knows the width and the final states of its encoder."""
    sites = {name: stack.site() for name, stack in stacks.items()}
    if spec.needs_source:
        (source, encoder), (target, _) = stacks.items()
        with torch.device("meta"):
            final = encoder.stack.build(sites[source]).final_widths
        sites[target] = replace(sites[target], memory_dim=encoder.dim, final_widths=final)
    return sites


def _column(name: str, spec: Single) -> Column:
    entry = [Node(f"{name}.tokens", "tokens"), Node(f"{name}.embedding", "embedding", spec.embedding.kind or "")]
    entry += [Node(f"{name}.{slot}", _title(value), slot) for slot, value in _around(spec, "position", "entry_norm")]
    layers = [Node(place, _title(branch.part), _norm(branch)) for place, branch in _branches(name, spec.stack)]
    leave = [Node(f"{name}.{slot}", _title(value), slot) for slot, value in _around(spec, "exit_norm", "head")]
    return Column((*entry, *layers, *leave), tuple(_frames(name, spec.stack)))


def _around(spec: Single, *slots: str) -> Iterator[tuple[str, Spec]]:
    """What stands in these slots; a head that hands on what it gets is none."""
    for slot in slots:
        value = vars(spec)[slot]
        if value is not None and value.kind not in ("hidden", "none"):
            yield slot.replace("_", " "), value


def _runs(stack: Stack) -> list[tuple[str, int]]:
    """Blocks in their order, equal neighbours together, each with how often it stands there; one cycle of them."""
    cycle = stack.order[: len(stack.layout) or len(stack.blocks)]
    return [(name, len(list(same))) for name, same in groupby(cycle)]


def _branches(name: str, stack: Stack) -> Iterator[tuple[str, Branch]]:
    for run, (block, _) in enumerate(_runs(stack)):
        for place, branch in enumerate(stack.blocks[block].branches):
            yield f"{name}.{run}.{place}", branch


def _frames(name: str, stack: Stack) -> Iterator[RepeatFrame]:
    runs = _runs(stack)
    cycles = stack.depth / sum(count for _, count in runs)
    for run, (block, count) in enumerate(runs):
        last = len(stack.blocks[block].branches) - 1
        times = f"{count * cycles:g}" if len(runs) == 1 else f"{count}, in turn: {stack.depth} in all"
        yield RepeatFrame(f"{name}.{run}.0", f"{name}.{run}.{last}", f"{block} × {times}")


def _title(spec: Spec) -> str:
    """Its kind, and that of what it is wrapped around."""
    inner = next((value for value in vars(spec).values() if isinstance(value, PartSpec)), None)
    heads = vars(spec).get("heads")
    title = f"{spec.kind}, {heads} heads" if isinstance(heads, int) else str(spec.kind)
    return title if inner is None else f"{title}: {_title(inner)}"


def _norm(branch: Branch) -> str:
    return "" if branch.place == "none" else f"{branch.place}-norm {branch.norm.kind}"


def _edges(name: str, spec: Single, column: Column, site: Site) -> Iterator[Edge]:
    for below, above in zip(column.nodes, column.nodes[1:], strict=False):
        yield Edge(below.name, above.name, "flow")
    for place, branch in _branches(name, spec.stack):
        if branch.join.kind != "replace":
            yield Edge(place, place, "residual")
        yield from (Edge(place, place, look) for look in _looks(branch.part, site))


def _looks(spec: PartSpec, site: Site) -> list[Look]:
    """What a part does along the sequence, inner parts included."""
    with torch.device("meta"):
        part = spec.place(site)
        looks = {look for module in part.modules() if isinstance(module, Part) for look in _remembers(module, site)}
    taps = any(isinstance(module, Tap) and name.endswith("pattern") for name, module in part.named_modules())
    if taps and not looks:
        looks = {_within(site)}
    return sorted(looks)


def _remembers(part: Part, site: Site) -> Iterator[Look]:
    base, longer, wider = (_bytes(part, site, *size) for size in ((SHORT, SHORT), (LONG, SHORT), (SHORT, LONG)))
    if wider > base:
        yield "cross"
    if longer > base:
        yield _within(site)
    if base and base == longer == wider:
        yield "carried"


def _within(site: Site) -> Look:
    return "masked" if site.causal else "self"


def _bytes(part: Part, site: Site, length: int, source: int) -> int:
    with suppress(SpecError):  # what cannot decode has no state of its own; what is inside of it may
        return nbytes(part.init_state(1, length, Memory(x=torch.zeros(1, source, site.memory_dim or site.dim))))
    return 0


def _feedback(column: Column) -> Edge:
    """What was written is read again."""
    return Edge(column.nodes[-1].name, column.nodes[0].name, "feedback")
