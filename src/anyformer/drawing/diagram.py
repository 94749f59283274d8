"""The diagram of a model, computed from its spec: boxes from the tokens (bottom) to the head (top), and arrows.

How a part mixes tokens is not declared for each kind but derived from the size of its state: a state that grows with
the source means cross-attention, one that grows with the tokens means self-attention, one of fixed size a recurrence.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from html import escape
from itertools import groupby
from typing import Literal, NamedTuple

import torch

from anyformer.core import Memory, ModelSpec, Part, PartSpec, Site, Spec, Tap, nbytes
from anyformer.core.readable_numbers import counted
from anyformer.errors import SpecError
from anyformer.models.single import Single, stacks_of
from anyformer.models.stack import Branch, Stack

Look = Literal["flow", "residual", "self", "masked", "cross", "carried", "feedback"]
SHORT, LONG = 8, 16
WIDTH, HEIGHT, GAP, SIDE, LANE, PAD = 220, 38, 36, 96, 150, 15
FITTING = 32
"""Characters of the usual size that fit into a box."""
INK, SOFT, FAINT, FILL = "#22262b", "#5c646d", "#c9d0d8", "#f3f5f8"
COLOURS: Mapping[Look, str] = {
    "flow": INK, "residual": "#aab2bc", "self": "#2a8f4e", "masked": "#c23b3b", "cross": "#2767c4",
    "carried": "#c8811a", "feedback": SOFT,
}  # fmt: skip
MEANINGS: Mapping[Look, str] = {
    "self": "attends to all tokens", "masked": "attends to earlier tokens", "cross": "attends to the encoder",
    "carried": "carries a state", "feedback": "output is fed back",
    "residual": "residual connection",
}  # fmt: skip


class Node(NamedTuple):
    """A box of the diagram."""

    name: str
    text: str
    note: str = ""
    """Second line of the box, in smaller print."""


class Edge(NamedTuple):
    """An arrow between two boxes, by name; a loop at one box shows how the part mixes tokens."""

    start: str
    end: str
    look: Look
    before: str = ""
    """An arrow from one stack to another passes over the boxes of its stack, and comes down left of this box."""


class RepeatFrame(NamedTuple):
    """A frame around the boxes of a block that is repeated."""

    first: str
    last: str
    text: str


class Column(NamedTuple):
    """The boxes of one stack, from bottom to top, and the frames around them."""

    nodes: list[Node]
    frames: list[RepeatFrame]


class Diagram(NamedTuple):
    """The columns from left to right, and all arrows."""

    columns: list[Column]
    edges: list[Edge]
    lane: int = LANE
    """Pixels between two columns."""


def diagram(spec: ModelSpec) -> Diagram:
    """The diagram of a model, built on the meta device without allocating weights."""
    stacks, sites = stacks_of(spec), sites_of(spec)
    columns = {name: _column(name, stack) for name, stack in stacks.items()}
    edges = [edge for name, stack in stacks.items() for edge in _edges(name, stack, columns[name], sites[name])]
    first, last = next(iter(columns.values())), list(columns.values())[-1]
    if spec.needs_source:
        top = first.nodes[-1].name
        edges = [edge._replace(start=top) if edge.look == "cross" else edge for edge in edges]
        if not any(edge.look == "cross" for edge in edges):  # the decoder starts from the encoder's final state
            edges.append(Edge(top, "decoder.0.0", "carried"))
    if spec.decodes:
        edges.append(Edge(last.nodes[-1].name, last.nodes[0].name, "feedback"))
    return Diagram(list(columns.values()), edges)


def sites_of(spec: ModelSpec) -> dict[str, Site]:
    """The site of the parts of each stack, by the name of the stack."""
    stacks = stacks_of(spec)
    sites = {name: stack.site() for name, stack in stacks.items()}
    if spec.needs_source:  # the site of a decoder has the width and the final state sizes of its encoder
        (source, encoder), (target, _) = stacks.items()
        with torch.device("meta"):
            final = encoder.stack.build(sites[source]).final_widths
        sites[target] = replace(sites[target], memory_dim=encoder.dim, final_widths=final)
    return sites


def _column(name: str, spec: Single) -> Column:
    nodes = [Node(f"{name}.tokens", "tokens"), Node(f"{name}.embedding", "embedding", spec.embedding.kind or "")]
    nodes += [Node(f"{name}.{slot}", _title(value), slot) for slot, value in _around(spec, "position", "entry_norm")]
    for place, branch in branches_of(name, spec.stack):
        norm = "" if branch.place == "none" else f"{branch.place}-norm {branch.norm.kind}"
        nodes.append(Node(place, _title(branch.part), norm))
    nodes += [Node(f"{name}.{slot}", _title(value), slot) for slot, value in _around(spec, "exit_norm", "head")]
    return Column(nodes, list(_frames(name, spec.stack)))


def _around(spec: Single, *slots: str) -> Iterator[tuple[str, Spec]]:
    """The specs in these slots, without empty ones and without heads that return the hidden state."""
    for slot in slots:
        value = vars(spec)[slot]
        if value is not None and value.kind not in ("hidden", "none"):
            yield slot.replace("_", " "), value


def _runs(stack: Stack) -> list[tuple[str, int]]:
    """The blocks of one cycle of the layout as (name, count), with equal neighbours merged."""
    cycle = stack.order[: len(stack.layout) or len(stack.blocks)]
    return [(name, len(list(same))) for name, same in groupby(cycle)]


def branches_of(name: str, stack: Stack) -> Iterator[tuple[str, Branch]]:
    """The branches of one cycle of a stack, each with the name of its box."""
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
    """The kind of a spec, followed by the kind of the part that it wraps."""
    inner = next((value for value in vars(spec).values() if isinstance(value, PartSpec)), None)
    heads = vars(spec).get("heads")
    title = f"{spec.kind}, {counted(heads, 'heads')}" if isinstance(heads, int) else str(spec.kind)
    return title if inner is None else f"{title}: {_title(inner)}"


def _edges(name: str, spec: Single, column: Column, site: Site) -> Iterator[Edge]:
    for below, above in zip(column.nodes, column.nodes[1:], strict=False):
        yield Edge(below.name, above.name, "flow")
    for place, branch in branches_of(name, spec.stack):
        if branch.join.kind != "replace":
            yield Edge(place, place, "residual")
        yield from (Edge(place, place, look) for look in _looks(branch.part, site))


def _looks(spec: PartSpec, site: Site) -> list[Look]:
    """How a part and its inner parts mix tokens."""
    within: Look = "masked" if site.causal else "self"
    looks: set[Look] = set()
    with torch.device("meta"):
        part = spec.place(site)
        for module in part.modules():
            if not isinstance(module, Part):
                continue
            sizes = ((SHORT, SHORT), (LONG, SHORT), (SHORT, LONG))
            base, longer, wider = (_state_bytes(module, site, *size) for size in sizes)
            looks |= {"cross"} if wider > base else set()
            looks |= {within} if longer > base else set()
            looks |= {"carried"} if base and base == longer == wider else set()
    taps = any(isinstance(module, Tap) and name.endswith("pattern") for name, module in part.named_modules())
    return sorted(looks) or ([within] if taps else [])


def _state_bytes(part: Part, site: Site, length: int, source: int) -> int:
    with suppress(SpecError):  # a part that cannot decode has no state; its inner parts may have one
        return nbytes(part.init_state(1, length, Memory(x=torch.zeros(1, source, site.memory_dim or site.dim))))
    return 0


class Box(NamedTuple):
    """The position of a node: its upper left corner."""

    x: float
    y: float

    @property
    def middle(self) -> float:
        return self.y + HEIGHT / 2


def picture(title: str, shown: Diagram) -> str:
    """The diagram as the text of an SVG file."""
    legend = [look for look in MEANINGS if any(edge.look == look for edge in shown.edges)]
    bottom = 44 + max(len(column.nodes) for column in shown.columns) * (HEIGHT + GAP)
    width = 2 * SIDE + len(shown.columns) * WIDTH + (len(shown.columns) - 1) * shown.lane
    height = bottom + 18 * len(legend) + 12
    boxes = {
        node.name: Box(SIDE + place * (WIDTH + shown.lane), bottom - (row + 1) * (HEIGHT + GAP))
        for place, column in enumerate(shown.columns)
        for row, node in enumerate(column.nodes)
    }
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            ' font-family="sans-serif">',
            f"<defs>{''.join(map(_arrow_head, COLOURS))}</defs>",
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            f'<text x="12" y="22" font-size="14" font-weight="600" fill="{INK}">{escape(title)}</text>',
            *(line for column in shown.columns for frame in column.frames for line in _frame_lines(frame, boxes)),
            *(_arrow(edge, boxes) for edge in shown.edges),
            *(line for column in shown.columns for node in column.nodes for line in _box(node, boxes[node.name])),
            *(_meaning(look, bottom + 8 + 18 * row) for row, look in enumerate(legend)),
            "</svg>\n",
        ]
    )


def _box(node: Node, box: Box) -> Iterator[str]:
    place = f'x="{box.x:g}" y="{box.y:g}" width="{WIDTH}" height="{HEIGHT}"'
    yield f'<rect class="node" {place} rx="6" fill="{FILL}" stroke="{SOFT}"/>'
    size = min(12, 12 * FITTING // len(node.text))
    yield _words(box.x + WIDTH / 2, box.y + (16 if node.note else 23), size, INK, node.text)
    if node.note:
        yield _words(box.x + WIDTH / 2, box.y + 30, 10, SOFT, node.note)


def _frame_lines(frame: RepeatFrame, boxes: Mapping[str, Box]) -> Iterator[str]:
    low, high = boxes[frame.first], boxes[frame.last]
    left, top, width = low.x - 34, high.y - PAD, high.x - low.x + WIDTH + 68
    size = f'width="{width}" height="{low.y + HEIGHT + PAD - top:g}"'
    yield f'<rect x="{left:g}" y="{top:g}" {size} rx="10" fill="none" stroke="{FAINT}"/>'
    place = f'x="{left + width - 8:g}" y="{top + 11:g}" text-anchor="end" font-size="10"'
    yield f'<text {place} fill="{SOFT}">{escape(frame.text)}</text>'


def _arrow(edge: Edge, boxes: Mapping[str, Box]) -> str:
    dots = ' stroke-dasharray="2 4"' if edge.look == "feedback" else ""
    return (
        f'<path class="{edge.look}" d="{_path(edge, boxes)}" fill="none" '
        f'stroke="{COLOURS[edge.look]}" stroke-width="1.6"{dots} marker-end="url(#{edge.look})"/>'
    )


def _path(edge: Edge, boxes: Mapping[str, Box]) -> str:
    start, end = boxes[edge.start], boxes[edge.end]
    centre, right = end.x + WIDTH / 2, end.x + WIDTH
    if edge.look == "flow":
        return f"M{centre:g} {start.y:g} V{end.y + HEIGHT + 6:g}"
    if edge.look == "residual":
        return f"M{centre - 30:g} {end.y + HEIGHT + 8:g} H{end.x - 14:g} V{end.y - 8:g} H{centre - 6:g}"
    if edge.look == "feedback" and start.x == end.x:
        return f"M{right:g} {start.middle:g} H{right + 78:g} V{end.middle:g} H{right + 6:g}"
    if edge.look == "feedback":  # to the token of the next column
        return f"M{start.x + WIDTH:g} {start.middle:g} H{end.x - 26:g} V{end.middle:g} H{end.x - 6:g}"
    if edge.before:
        over = f"M{start.x + WIDTH / 2:g} {start.y:g} V{start.y - 24:g} H{boxes[edge.before].x - 42:g}"
        below = end.y + HEIGHT
        if edge.look == "cross":
            return f"{over} V{below + 18:g} H{end.x + WIDTH * 0.7:g} V{below + 6:g}"
        return f"{over} V{end.middle:g} H{end.x - 6:g}"
    if start.y == end.y and start != end:
        return _along(edge.look, start, end)
    if start != end:
        out, into, y = start.x + WIDTH, end.x - 6, end.middle
        return f"M{out:g} {start.middle:g} C{out + 80:g} {start.middle:g} {into - 84:g} {y:g} {into:g} {y:g}"
    return f"M{right:g} {end.y + 9:g} c34 -7 34 27 5 20"  # a loop on the right side of the box


def _along(look: Look, start: Box, end: Box) -> str:
    """From the box of one token to the same box of another: a state from side to side, attention from the inputs."""
    if look != "carried":
        y, into = start.y + HEIGHT + 18, end.x + WIDTH * (0.3 if end.x < start.x else 0.7)
        return f"M{start.x + WIDTH / 2:g} {y:g} H{into:g} V{end.y + HEIGHT + 6:g}"
    if end.x < start.x:
        return f"M{start.x:g} {start.middle + 8:g} H{end.x + WIDTH + 6:g}"
    return f"M{start.x + WIDTH:g} {start.middle - 8:g} H{end.x - 6:g}"


def _arrow_head(look: Look) -> str:
    return (
        f'<marker id="{look}" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0 L8 4 L0 8 z" fill="{COLOURS[look]}"/></marker>'
    )


def _meaning(look: Look, y: float) -> str:
    dots = ' stroke-dasharray="2 4"' if look == "feedback" else ""
    return (
        f'<path d="M14 {y:g} h26" stroke="{COLOURS[look]}" stroke-width="2"{dots}/>'
        f'<text x="48" y="{y + 4:g}" font-size="11" fill="{SOFT}">{MEANINGS[look]}</text>'
    )


def _words(x: float, y: float, size: int, colour: str, text: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="middle" fill="{colour}">{escape(text)}</text>'
